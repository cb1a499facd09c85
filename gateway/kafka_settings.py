"""`TIERGATE_KAFKA_*`: the cluster, how to authenticate to it, and the two usage topics."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode

_SERVER = re.compile(r"^(\[[0-9a-fA-F:]+\]|[^\s:,/]+):\d{1,5}$")
Topic = Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]


def _split(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


class KafkaSettings(BaseSettings):
    kafka_bootstrap_servers: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)] = ()
    """host:port, separated by commas; empty: no Kafka."""
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        default=None, validate_default=True
    )
    kafka_user: str | None = Field(default=None, validate_default=True)
    kafka_password: SecretStr | None = Field(default=None, validate_default=True)
    kafka_ca: Path | None = None
    """A PEM file; None: the system's certificate authorities."""
    kafka_topic: Topic = "tiergate.usage"
    kafka_dead_letter_topic: Topic = "tiergate.usage.dead-letters"
    kafka_group: str = Field(default="tiergate-consumer", min_length=1, max_length=200)
    kafka_partitions: int = Field(default=12, ge=1, le=1000)
    """At least the number of consumers that will ever run at once."""
    kafka_replication: int = Field(default=3, ge=1, le=9)
    kafka_min_insync_replicas: int | None = Field(default=None, ge=1, validate_default=True)
    """None: 2, or 1 if the replication is 1."""
    kafka_retention_hours: int = Field(default=168, ge=1)
    """How long ClickHouse may be unavailable without losing usage."""
    kafka_compression: Literal["zstd", "lz4"] = "zstd"

    @property
    def kafka_replicas_in_sync(self) -> int:
        return self.kafka_min_insync_replicas or min(2, self.kafka_replication)

    @field_validator("kafka_bootstrap_servers")
    @classmethod
    def _are_servers(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        for server in servers:
            if not _SERVER.match(server):
                raise ValueError(f"{server!r} is not host:port")
        return servers

    @field_validator("kafka_sasl_mechanism", "kafka_user", "kafka_password")
    @classmethod
    def _is_there_for_sasl(cls, value: object, info: ValidationInfo) -> object:
        protocol = info.data.get("kafka_security_protocol", "")
        if protocol.startswith("SASL") and value is None:
            raise ValueError(f"the security protocol {protocol} needs it")
        return value

    @field_validator("kafka_ca")
    @classmethod
    def _is_file(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_file():
            raise ValueError(f"there is no file {path}")
        return path

    @field_validator("kafka_dead_letter_topic")
    @classmethod
    def _is_another(cls, topic: str, info: ValidationInfo) -> str:
        if topic == info.data.get("kafka_topic"):
            raise ValueError("dead letters need a topic of their own")
        return topic

    @field_validator("kafka_min_insync_replicas")
    @classmethod
    def _are_so_many(cls, replicas: int | None, info: ValidationInfo) -> int | None:
        replication = info.data.get("kafka_replication", 0)
        if replicas is not None and replicas > replication:
            raise ValueError(f"more than the {replication} replicas that there are would refuse every event")
        return replicas
