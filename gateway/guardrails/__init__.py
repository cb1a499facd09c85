"""Asks guardrails over HTTP, and holds back text that they have not checked yet."""
