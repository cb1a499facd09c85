"""Usage events through Kafka. Imported only if `TIERGATE_KAFKA_BOOTSTRAP_SERVERS` is set."""
