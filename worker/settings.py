"""What a worker process is started with: options of the command line over TIERGATE_WORKER_* variables over defaults."""

import ipaddress
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

_PREFIX = "TIERGATE_WORKER_"
_VARIABLES = {"api_key": ("KEY", "API_KEY"), "adapters": ("ADAPTERS", "ADAPTER")}
"""Settings whose variables are not just their names: the first that is set counts."""
_SWITCHES = {"true": True, "1": True, "false": False, "0": False}
_POOLINGS = ("last", "mean")
_DTYPES = ("auto", "float32", "bfloat16", "float16")


class SettingsError(Exception):
    """A bad value: one line naming the option and what to change."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Lengths are tokens. None means: what the checkpoint says, or what is measured at start.

    name: the model id that clients see; None for the folder's name. adapters: name -> folder. register: the Redis URL
    to send heartbeats to. public_prompts: a folder of system prompts whose cached blocks all tenants share. url: where
    others reach this worker; None for host and port. api_key: the shared worker key.
    pooling: which of a text's final states make its embedding. deterministic: logits to the last bit the same in any
    batch.
    """

    model: Path
    port: int = 8000
    host: str = "127.0.0.1"
    name: str | None = None
    dtype: str = "auto"
    pooling: str = "last"
    pool: str | None = None
    adapters: Mapping[str, Path] = field(default_factory=dict)
    max_model_len: int | None = None
    register: str | None = None
    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    max_num_seqs: int = 64
    max_batched_tokens: int = 2048
    max_waiting: int = 256
    enterprise_headroom: float = 0.05
    num_threads: int | None = None
    deterministic: bool = False
    kv_blocks: int | None = None
    kv_memory_mb: int = 1024
    public_prompts: Path | None = None
    max_body_bytes: int = 8 << 20
    drain_grace_s: float = 30.0

    def __post_init__(self) -> None:
        _check(self)

    @property
    def served_name(self) -> str:
        return self.name or self.model.resolve().name

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def load_settings(environment: Mapping[str, str] | None = None, **options: Any) -> WorkerSettings:
    """Options that are None count as not given. Raises SettingsError."""
    environment = os.environ if environment is None else environment
    hints = typing.get_type_hints(WorkerSettings)
    values: dict[str, Any] = {}
    for name in (each.name for each in fields(WorkerSettings)):
        variables = [_PREFIX + variable for variable in _VARIABLES.get(name, (name.upper(),))]
        if options.get(name) is not None:
            values[name] = options[name]
        elif variable := next(filter(environment.get, variables), None):
            values[name] = _parse(environment[variable], hints[name], name=variable)
    if "model" not in values:
        raise SettingsError("--model (TIERGATE_WORKER_MODEL): give the folder of a checkpoint")
    return WorkerSettings(**values | {"model": Path(values["model"])})


def parse_adapters(pairs: list[str], *, name: str = "--adapter") -> dict[str, Path]:
    """`NAME=PATH` each. Raises SettingsError."""
    adapters: dict[str, Path] = {}
    for pair in pairs:
        adapter, equals, path = pair.partition("=")
        if not (adapter and equals and path):
            raise SettingsError(f"{name}: {pair!r} is not NAME=PATH")
        if adapter in adapters:
            raise SettingsError(f"{name}: {adapter!r} is given twice")
        adapters[adapter] = Path(path)
    return adapters


def _parse(text: str, kind: Any, *, name: str) -> Any:
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        kind = typing.get_args(kind)[0]
    if kind is bool:
        return _parse_switch(text, name=name)
    if kind not in (int, float, str, Path):
        return parse_adapters([pair for pair in text.split(",") if pair], name=name)
    try:
        return kind(text)
    except ValueError:
        raise SettingsError(f"{name}: {text!r} is not {'an integer' if kind is int else 'a number'}") from None


def _parse_switch(text: str, *, name: str) -> bool:
    if text.lower() not in _SWITCHES:
        raise SettingsError(f"{name}: {text!r} is not one of {', '.join(_SWITCHES)}")
    return _SWITCHES[text.lower()]


def _check(settings: WorkerSettings) -> None:
    if not 0 <= settings.port <= 65535:
        raise SettingsError(f"--port: {settings.port} is not between 0 and 65535")
    if settings.pooling not in _POOLINGS:
        raise SettingsError(f"--pooling: {settings.pooling!r} is not one of {', '.join(_POOLINGS)}")
    if settings.dtype not in _DTYPES:
        raise SettingsError(f"--dtype: {settings.dtype!r} is not one of {', '.join(_DTYPES)}")
    counts = ("max_model_len", "max_num_seqs", "max_batched_tokens", "num_threads", "kv_blocks", "kv_memory_mb")
    for name in counts:
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise SettingsError(f"--{name.replace('_', '-')}: {value} is less than 1")
    if settings.max_waiting < 0:
        raise SettingsError(f"--max-waiting: {settings.max_waiting} is less than 0")
    if not 0 <= settings.enterprise_headroom < 1:
        raise SettingsError(f"--enterprise-headroom: {settings.enterprise_headroom} is not between 0 and 1")
    if settings.drain_grace_s < 0:
        raise SettingsError(f"--drain-grace-s: {settings.drain_grace_s} is less than 0")
    if settings.api_key is None and not settings.is_loopback:
        raise SettingsError(f"--host: {settings.host} needs --api-key (TIERGATE_WORKER_KEY); without one use 127.0.0.1")
    if settings.api_key is None and settings.register is not None:
        raise SettingsError("--register: needs --api-key (TIERGATE_WORKER_KEY), which signs the registration")
    if settings.served_name in settings.adapters:
        raise SettingsError(f"--adapter: {settings.served_name!r} is the model's own name")
