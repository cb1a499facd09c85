"""Usage: the durable outbox, its way into ClickHouse, and the queries over it."""
