"""Checks that the optional extra `kafka` is installed."""

from importlib.util import find_spec

from gateway.settings import ConfigError

_NEEDED = ("kafka", "crc32c", "lz4", "zstandard")


def check_library() -> None:
    """Raises ConfigError."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"TIERGATE_KAFKA_BOOTSTRAP_SERVERS: needs {', '.join(missing)}; pip install 'tiergate[kafka]'"
        )
