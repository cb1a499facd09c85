"""Limits: reserved in one Lua call before a request, settled with the actual figures after it."""
