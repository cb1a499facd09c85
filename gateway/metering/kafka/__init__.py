"""Usage events through Kafka. Imported only where `TIERGATE_KAFKA_BOOTSTRAP_SERVERS` is set."""
