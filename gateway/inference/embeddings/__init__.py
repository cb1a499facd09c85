"""`POST /v1/embeddings`: the way of a completion, to one model and no other."""
