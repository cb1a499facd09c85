"""A real broker takes the settings that docker-compose.yml gives to Kafka's image."""

from pathlib import Path

import yaml
from kafka import KafkaAdminClient

from tests.support.kafka import KafkaBroker
from tests.support.ports import free_port
from tests.support.prometheus import DEPLOY

PASSWORD = "the-kafka-password"


def test_kafka_starts_as_the_compose_file_says_and_asks_for_the_password(tmp_path: Path) -> None:
    compose = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())
    environment = compose["services"]["kafka"]["environment"]
    broker = KafkaBroker(tmp_path)
    (tmp_path / "server.properties").write_text(properties(environment, broker.port, tmp_path))
    broker.start()
    try:
        ours = compose["services"]["producer"]["environment"]
        client = KafkaAdminClient(
            bootstrap_servers=broker.server,
            security_protocol=ours["TIERGATE_KAFKA_SECURITY_PROTOCOL"],
            sasl_mechanism=ours["TIERGATE_KAFKA_SASL_MECHANISM"],
            sasl_plain_username=ours["TIERGATE_KAFKA_USER"],
            sasl_plain_password=PASSWORD,
        )
        assert client.list_topics() == []
        client.close()
    finally:
        broker.kill()


def properties(environment: dict[str, str], port: int, folder: Path) -> str:
    """As the image makes them: KAFKA_NODE_ID is node.id."""
    controller_port = free_port()
    lines = []
    for name, value in environment.items():
        if name.startswith("KAFKA_"):
            key = name.removeprefix("KAFKA_").lower().replace("_", ".")
            lines.append(f"{key}={value}".replace("${KAFKA_PASSWORD:?}", PASSWORD))
    text = (
        "\n".join(lines)
        .replace("kafka:9092", f"127.0.0.1:{port}")
        .replace("kafka:9093", f"127.0.0.1:{controller_port}")
    )
    text = text.replace("CLIENT://:9092", f"CLIENT://127.0.0.1:{port}")
    text = text.replace("CONTROLLER://:9093", f"CONTROLLER://127.0.0.1:{controller_port}")
    return text.replace("/var/lib/kafka/data", str(folder / "data"))
