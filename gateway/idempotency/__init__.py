"""`Idempotency-Key`: the answer to a request that may come twice, kept to be given again."""
