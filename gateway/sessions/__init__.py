"""Conversations that the platform keeps for clients: their format, their place in Redis, and leases to change them."""
