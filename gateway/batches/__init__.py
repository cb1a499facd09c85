"""Running batches. One gateway process at a time holds a batch, and its results are durable before they are billed."""
