"""Guardrails: whose they are, which texts they check, and what becomes of a request that they cannot check."""
