"""Requests that name server tools: the same way several times, with the tools called between."""
