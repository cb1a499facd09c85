"""Erasing a tenant or an end user from every store: a durable job of steps, each of which may be done again.

The one floor that knows all stores; nothing below knows it.
"""
