"""Asking guardrails over HTTP, and holding back what they have not seen yet."""
