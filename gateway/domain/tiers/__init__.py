"""Tiers: what a tenant may use, and how its requests are routed."""
