"""`POST /v1/embeddings`: takes the path of a completion, but only to the one model that it names."""
