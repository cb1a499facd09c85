"""Erases a tenant or an end user from every store: a durable job of steps, each of which may be repeated.

This is the one layer that knows all stores; no layer below knows it.
"""
