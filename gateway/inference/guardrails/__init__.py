"""The guardrails' step of a request: what goes in is checked before a member sees it, what comes out before the
client does."""
