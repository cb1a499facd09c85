"""Usage events: the durable outbox, shipping to ClickHouse, and queries over the stored usage."""
