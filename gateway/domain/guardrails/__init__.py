"""Guardrails: their owners, the texts they check, and what happens to a request that they cannot check."""
