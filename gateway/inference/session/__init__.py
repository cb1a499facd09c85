"""Requests with `X-Session-Id`: the conversation so far goes in front, and their turn is kept."""
