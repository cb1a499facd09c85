"""Text to token ids and back with a pool's own tokenizer, and the dry run of the router."""
