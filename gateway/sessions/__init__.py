"""Conversations that the platform keeps for its clients: their form, their place in Redis, and who may change one."""
