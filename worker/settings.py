"""A worker's settings: command-line options, then `TIERGATE_WORKER_*` variables, then defaults."""

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

ENV_PREFIX = "TIERGATE_WORKER_"
_SPELLINGS = {
    "adapters": ("--adapter", f"{ENV_PREFIX}ADAPTERS"),
    "register_url": ("--register", f"{ENV_PREFIX}REGISTER"),
    "api_key": ("--api-key", f"{ENV_PREFIX}KEY"),
}
"""Option and variable of the fields whose names do not match both."""


class SettingsError(Exception):
    """A bad value: one line naming the option and what to change."""


def _parse_adapters(value: Any) -> Any:
    """`NAME=PATH` pairs, in a list or separated by commas; a mapping stays as it is."""
    if isinstance(value, str):
        value = [pair for pair in value.split(",") if pair]
    if not isinstance(value, list):
        return value
    adapters: dict[str, str] = {}
    for pair in value:
        name, _, path = pair.partition("=")
        if not (name and path):
            raise ValueError(f"{pair!r} is not NAME=PATH")
        if name in adapters:
            raise ValueError(f"{name!r} is given twice")
        adapters[name] = path
    return adapters


def _split(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


Adapters = Annotated[dict[str, Path], NoDecode, BeforeValidator(_parse_adapters)]


class WorkerSettings(BaseSettings):
    """Lengths are in tokens. None means the checkpoint's value, or one measured at start."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, populate_by_name=True, extra="forbid", frozen=True
    )

    model: Path
    port: int = Field(default=8000, ge=0, le=65535)
    host: str = "127.0.0.1"
    uds: Path | None = None
    """A Unix socket to listen on instead of host and port, for this user's programs only."""
    name: str | None = None
    """The model id that clients see; None for the folder's name."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPU, if torch finds one."""
    eager: bool = False
    """On a GPU, launch decodes one by one instead of as CUDA graphs."""
    pooling: Literal["last", "mean"] = "last"
    """Which of a text's final states make its embedding."""
    pool: str | None = None
    adapters: Adapters = Field(
        default={}, validation_alias=AliasChoices(f"{ENV_PREFIX}ADAPTERS", f"{ENV_PREFIX}ADAPTER")
    )
    artifacts_url: str | None = None
    """The platform's adapter store: `s3://BUCKET/PREFIX` or a folder; None: serve only the adapters in `adapters`."""
    artifacts_dir: Path | None = None
    """Where fetched adapters are kept; None: a folder named by the port below `~/.cache/tiergate`."""
    artifacts_max_mb: int = Field(default=8192, ge=1)
    adapter_slots: int = Field(default=32, ge=1, le=1024)
    """How many adapters of rank 64 or less a step can use; more take turns."""
    adapter_host_mb: int = Field(default=512, ge=1)
    """Host memory for adapters that are in no slot; beyond that they are on disk only."""
    max_model_len: int | None = Field(default=None, ge=1)
    register_url: str | None = Field(default=None, validation_alias=f"{ENV_PREFIX}REGISTER")
    """The Redis to send heartbeats to."""
    url: str | None = None
    """The URL at which others reach this worker; None for host and port."""
    api_key: str | None = Field(default=None, repr=False, validation_alias=f"{ENV_PREFIX}KEY")
    """The shared worker key."""
    other_keys: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)] = Field(default=(), repr=False)
    """Keys that are also accepted while the worker key is being replaced."""
    metrics_key: str | None = Field(default=None, repr=False, min_length=8)
    """Opens `/metrics`, as the worker key does. With neither, `/metrics` answers this machine only."""
    max_num_seqs: int = Field(default=64, ge=1)
    max_batched_tokens: int = Field(default=2048, ge=1)
    max_waiting: int = Field(default=256, ge=0)
    enterprise_headroom: float = Field(default=0.05, ge=0, lt=1)
    num_threads: int | None = Field(default=None, ge=1)
    deterministic: bool = False
    """Logits are bit-identical in any batch."""
    kv_blocks: int | None = Field(default=None, ge=1)
    kv_memory_mb: int | None = Field(default=None, ge=1)
    public_prompts: Path | None = None
    """A folder of system prompts whose cached blocks all tenants share."""
    tool_parser: Literal["auto", "hermes", "llama", "pythonic", "mistral"] = "auto"
    """How the model writes tool calls; auto: detected from its chat template."""
    reasoning_parser: Literal["auto", "none", "think", "mistral"] = "auto"
    """How the model marks its thoughts; auto: detected from its chat template, if that shows it."""
    allow_special_tokens: bool = False
    """Prompt text that spells a control token becomes that token."""
    ledger: Path | None = None
    """The file that counts tokens by tenant and hour; None: counts are in memory, and lost with the process."""
    max_logprobs: int = Field(default=20, ge=-1)
    """How many log-probabilities a request may ask for beside each token; -1: the whole vocabulary's."""
    watermark_key_file: Path | None = None
    """Sampled text is watermarked with this key (docs/watermark.md)."""
    watermark_gamma: float = Field(default=0.25, gt=0, lt=1)
    """The share of the vocabulary that is green after a token."""
    watermark_delta: float = Field(default=2.0, gt=0, le=20)
    """The bias added to the logits of green tokens."""
    max_body_bytes: int = Field(default=8 << 20, ge=1)
    drain_grace_s: float = Field(default=30.0, ge=0)

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys that callers may present; empty: everyone on loopback may call."""
        return () if self.api_key is None else (self.api_key, *self.other_keys)

    @property
    def served_name(self) -> str:
        return self.name or self.model.resolve().name

    @property
    def adapter_cache(self) -> Path:
        return self.artifacts_dir or Path.home() / ".cache" / "tiergate" / f"adapters-{self.port}"

    @property
    def is_loopback(self) -> bool:
        if self.uds is not None:
            return True
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @model_validator(mode="after")
    def _fit_together(self) -> "WorkerSettings":
        if self.api_key is None and not self.is_loopback:
            raise ValueError(f"--host: {self.host} needs --api-key (TIERGATE_WORKER_KEY); without one use 127.0.0.1")
        if self.api_key is None and self.register_url is not None:
            raise ValueError("--register: needs --api-key (TIERGATE_WORKER_KEY), which signs the registration")
        if self.other_keys and self.api_key is None:
            raise ValueError("TIERGATE_WORKER_OTHER_KEYS: needs TIERGATE_WORKER_KEY, beside which they are taken")
        if self.uds is not None and self.register_url is not None and self.url is None:
            raise ValueError("--register: a gateway cannot reach --uds; give --url, where something passes it on")
        if self.served_name in self.adapters:
            raise ValueError(f"--adapter: {self.served_name!r} is the model's own name")
        return self


def load_settings(**options: Any) -> WorkerSettings:
    """options: by field name; None counts as not given. Raises SettingsError."""
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return WorkerSettings(**given)
    except ValidationError as error:
        raise SettingsError(_first_line(error, given)) from error


def _first_line(error: ValidationError, given: dict[str, Any]) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    reason = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return reason
    name = str(first["loc"][0])
    if first["type"] == "missing":
        return "--model (TIERGATE_WORKER_MODEL): give the folder of a checkpoint"
    if isinstance(first["input"], str | int | float) and first["type"] != "value_error":
        reason += f", got {first['input']!r}"
    return f"{_spell(name, given)}: {reason}"


def _spell(name: str, given: dict[str, Any]) -> str:
    """The setting's name as the operator wrote it. name: the field's or its variable's."""
    field = next((field for field, (_, variable) in _SPELLINGS.items() if variable == name), name)
    option, variable = _SPELLINGS.get(field, ("--" + field.replace("_", "-"), ENV_PREFIX + field.upper()))
    return option if field in given else variable
