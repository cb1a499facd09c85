"""Commands that run a process of the platform, or talk to it as a client."""
