"""Limits: capacity is reserved in one Lua call before a request, and settled with the actual figures after it."""
