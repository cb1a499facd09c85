"""Connection options for our Kafka clients, and the mapping of the library's errors to ours."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient
from kafka.errors import (
    AuthorizationError,
    KafkaConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)

from gateway.kafka_settings import KafkaSettings
from gateway.metering.drain import TargetUnavailable
from gateway.settings import ConfigError

CONNECT_TIMEOUT_MS = 5000
REQUEST_TIMEOUT_MS = 10_000
METADATA_AGE_MS = 10_000
"""A re-created topic or a new partition is noticed within this time."""


class KafkaUnavailable(TargetUnavailable):
    """Kafka is unreachable or refuses at the moment; the same call may pass later."""


def client_options(settings: KafkaSettings) -> dict[str, Any]:
    """The options that producers, consumers and admin clients share."""
    _last_complaint.listen()
    options: dict[str, Any] = {
        "bootstrap_servers": list(settings.kafka_bootstrap_servers),
        "client_id": "tiergate",
        "security_protocol": settings.kafka_security_protocol,
        "bootstrap_timeout_ms": CONNECT_TIMEOUT_MS,
        "request_timeout_ms": REQUEST_TIMEOUT_MS,
        "reconnect_backoff_max_ms": 1000,
        "metadata_max_age_ms": METADATA_AGE_MS,
    }
    if settings.kafka_ca is not None:
        options["ssl_cafile"] = str(settings.kafka_ca)
    if settings.kafka_sasl_mechanism is not None and settings.kafka_password is not None:
        options |= {
            "sasl_mechanism": settings.kafka_sasl_mechanism,
            "sasl_plain_username": settings.kafka_user,
            "sasl_plain_password": settings.kafka_password.get_secret_value(),
        }
    return options


@contextmanager
def kafka_calls() -> Iterator[None]:
    """Translates the library's errors to ConfigError or KafkaUnavailable."""
    try:
        yield
    except (SaslAuthenticationFailedError, UnsupportedSaslMechanismError) as error:
        raise ConfigError(f"TIERGATE_KAFKA_PASSWORD: the cluster does not let us in: {says(error)}") from error
    except AuthorizationError as error:
        raise ConfigError(f"TIERGATE_KAFKA_USER: the cluster's access rules refuse it: {says(error)}") from error
    except KafkaConfigurationError:
        # A bug of ours; retrying would not help.
        raise
    except (KafkaError, OSError, TimeoutError) as error:
        complaint = _last_complaint.take()
        if isinstance(error, KafkaTimeoutError):
            _check_access(complaint)
        raise KafkaUnavailable(f"{says(error)} ({complaint})" if complaint else says(error)) from error


class _LastComplaint(logging.Handler):
    """Keeps the library's last log message for our own error message.

    The library logs a line for every reconnection, but only its log has the cause of a failed start."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._message = ""

    def listen(self) -> None:
        logger = logging.getLogger("kafka")
        if self not in logger.handlers:
            logger.addHandler(self)
            logger.setLevel(logging.WARNING)
            logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if any(sign in message for sign in _ACCESS) or not any(sign in self._message for sign in _ACCESS):
            self._message = message

    def take(self) -> str:
        message, self._message = self._message, ""
        return message.splitlines()[0][:200] if message else ""


_last_complaint = _LastComplaint()
_ACCESS = {
    "SaslAuthenticationFailed": "TIERGATE_KAFKA_PASSWORD",
    "UnsupportedSaslMechanism": "TIERGATE_KAFKA_SASL_MECHANISM",
    "CERTIFICATE_VERIFY_FAILED": "TIERGATE_KAFKA_CA",
    "WRONG_VERSION_NUMBER": "TIERGATE_KAFKA_SECURITY_PROTOCOL",
}


def _check_access(complaint: str) -> None:
    """Raises ConfigError for access errors that retrying does not resolve."""
    for sign, field in _ACCESS.items():
        if sign in complaint:
            raise ConfigError(f"{field}: the cluster does not let us in: {complaint}")


class _AdminClient(KafkaAdminClient):  # type: ignore[misc]
    """Closes itself if the connection fails.

    The library's client leaves a thread and its sockets behind when no broker answers; an hour of retries leaks too
    many of them."""

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except BaseException:
            if hasattr(self, "_net"):
                self._closed = False
                self.close()
            raise


def connect_admin(settings: KafkaSettings) -> KafkaAdminClient:
    """Raises KafkaUnavailable or ConfigError."""
    with kafka_calls():
        return _AdminClient(**client_options(settings))


def says(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]
