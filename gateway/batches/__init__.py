"""Running batches: by the one gateway process that holds each, its results durable before they count."""
