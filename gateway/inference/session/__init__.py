"""Requests with `X-Session-Id`: the stored conversation is put in front, and the new turn is stored."""
