"""Connections to the members of the fleet: our own workers and other OpenAI-compatible servers."""
