"""The guardrail step of a request: input is checked before a member sees it, output before the client does."""
