"""Tenants: the customers."""
