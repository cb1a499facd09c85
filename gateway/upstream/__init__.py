"""Connections to the members of the fleet: workers of ours and other OpenAI-compatible servers."""
