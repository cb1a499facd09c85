"""Commands that run a process of the platform, or use the platform as a client."""
