"""`Idempotency-Key`: keeps the answer to a request, so that a repeated request gets the same answer."""
