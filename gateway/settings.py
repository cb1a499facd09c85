"""The gateway's settings: `TIERGATE_*` over `tiergate.toml` over defaults, read once into one frozen object."""

import os
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FilePath,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from gateway.kafka_settings import KafkaSettings
from gateway.oidc_settings import OidcSettings
from gateway.peppers import Peppers

ENV_PREFIX = "TIERGATE_"
CONFIG_EXIT_CODE = 2
OVERFLOW_SUFFIX = ".overflow"
DEFAULT_CONFIG = Path("tiergate.toml")


class ConfigError(Exception):
    """Bad configuration; the message is one line that names the field. The process ends with CONFIG_EXIT_CODE."""


def _without_slash(url: Any) -> Any:
    return url.rstrip("/") if isinstance(url, str) else url


def _split(value: Any) -> Any:
    """Splits the list in an environment variable at its commas."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


Listed = BeforeValidator(_split)
Pepper = Annotated[SecretStr, Field(min_length=16)]
WorkerKey = Annotated[SecretStr, Field(min_length=8)]
Origin = Annotated[str, BeforeValidator(_without_slash), Field(pattern=r"^(\*|https?://[^\s/*]+)$")]
ToolHost = Annotated[str, Field(pattern=r"^((\*\.)?[a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?$")]
HttpUrl = Annotated[str, BeforeValidator(_without_slash), Field(pattern=r"^https?://[^\s]+$")]


def _checked_variable(name: str | None) -> str | None:
    if name is not None and not os.environ.get(name):
        raise ValueError(f"the environment variable {name!r} is not set")
    return name


Feature = Literal[
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "strict",
    "json_object",
    "json_schema",
    "reasoning_effort",
    "logprobs",
]
"""Features of OpenAI's API that members of other engines may lack."""


class MemberConfig(BaseModel):
    """A fixed member of a pool, besides the workers that register themselves."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: HttpUrl
    engine: Literal["tiergate", "openai"] = "tiergate"
    model: str | None = None
    """The model's name at the member; the pool's model id when absent."""
    api_key_env: str | None = None
    """The environment variable that holds the member's key."""
    lacks: frozenset[Feature] = frozenset()
    """Features for which requests to the member's pool are refused."""

    @field_validator("api_key_env")
    @classmethod
    def _is_set(cls, name: str | None) -> str | None:
        return _checked_variable(name)

    @model_validator(mode="after")
    def _is_foreign(self) -> "MemberConfig":
        if self.lacks and self.engine == "tiergate":
            raise ValueError("lacks: a worker of ours tells itself what it refuses")
        return self


class OverflowConfig(BaseModel):
    """An external provider for requests that a pool has no capacity for. Its model has a price of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: HttpUrl
    model: str = Field(min_length=1, max_length=200)
    """The model id that clients see and that is priced."""
    model_at_provider: str | None = None
    api_key_env: str | None = None
    context_window: int | None = Field(default=None, ge=1)
    """None: the pool's own."""
    budget_nanousd_per_month: int = Field(ge=0)
    """For all tenants together, at the model's price."""

    @field_validator("api_key_env")
    @classmethod
    def _is_set(cls, name: str | None) -> str | None:
        return _checked_variable(name)


class PoolConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(min_length=1, max_length=200)
    context_window: int = Field(ge=1)
    kind: Literal["chat", "embedding"] = "chat"
    members: tuple[MemberConfig, ...] = ()
    tokenizer: Path | None = None
    """A folder with tokenizer and template, for counting tokens if no member serves them."""
    overflow: OverflowConfig | None = None

    @model_validator(mode="after")
    def _compares_no_embeddings(self) -> "PoolConfig":
        if self.overflow is not None and self.kind == "embedding":
            raise ValueError("overflow: embeddings of different models cannot be compared")
        return self


class GatewaySettings(OidcSettings, KafkaSettings):
    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    processes: int = Field(default=1, ge=1, le=256)
    """Number of processes that serve, each on its own core."""
    data_dir: Path = Path(".tiergate")
    database_url: str = Field(default="", pattern=r"^$|^(postgresql|sqlite)(\+\w+)?://")
    redis_url: str = Field(default="redis://127.0.0.1:6379/0", pattern=r"^(rediss?|unix)://")
    clickhouse_url: HttpUrl | None = None
    usage_events_kept_days: int | None = Field(default=None, ge=1)
    """None: for ever. The next two settings are the same for hourly and daily rollups."""
    usage_hours_kept_days: int | None = Field(default=None, ge=1)
    usage_days_kept_days: int | None = Field(default=None, ge=1)
    outbox_max_bytes: int = Field(default=8 * 2**30, ge=2**20)
    """Size of the usage that waits to be shipped; beyond it requests are refused."""
    outbox_min_free_bytes: int = Field(default=256 * 2**20, ge=0)
    """Free space to leave on the outbox's disk; with less, requests are refused."""
    producer_port: int | None = Field(default=None, ge=1, le=65535)
    consumer_port: int | None = Field(default=None, ge=1, le=65535)
    """Ports for the `/health`, `/ready` and `/metrics` of producer and consumer; None: not served."""
    artifacts_url: str | None = None
    """The store of adapters: `s3://BUCKET/PREFIX`, or a folder that workers also see; None: in the data directory."""
    adapter_roots: Annotated[tuple[str, ...], NoDecode, Listed] = ()
    """Places below which platform administrators may register adapters that are already there."""
    max_adapter_bytes: int = Field(default=2 * 2**30, ge=1024)
    max_file_bytes: int = Field(default=200 * 10**6, ge=1024)
    max_files: int = Field(default=1000, ge=1)
    max_files_bytes: int = Field(default=5 * 10**9, ge=1)
    """Total size of a tenant's files, including those its batches wrote."""
    files_kept_days: int = Field(default=30, ge=1)
    max_batches: int = Field(default=20, ge=1)
    """Batches of one tenant that wait or run."""
    batch_concurrency: int = Field(default=32, ge=1)
    """Concurrent batch requests in each gateway process, no matter how much capacity is idle."""
    key_pepper: SecretStr = Field(min_length=16)
    old_key_peppers: Annotated[tuple[Pepper, ...], NoDecode, Listed] = ()
    """Previous peppers. Data made with them is read and migrated to `key_pepper`."""
    next_key_pepper: Pepper | None = None
    """The pepper that will replace `key_pepper`. Data from gateways that already use it can be read."""
    bootstrap_admin_key: SecretStr | None = Field(default=None, min_length=16)
    worker_key: WorkerKey | None = None
    worker_other_keys: Annotated[tuple[WorkerKey, ...], NoDecode, Listed] = ()
    """Further keys that workers may have while `worker_key` is being replaced."""
    metrics_key: SecretStr | None = Field(default=None, min_length=8)
    """None: `/metrics` is served to this machine only."""
    otlp_endpoint: HttpUrl | None = None
    """URL of an OpenTelemetry trace collector, without `/v1/traces`; None: no traces."""
    trace_ratio: float = Field(default=1.0, ge=0, le=1)
    """The fraction of requests that are traced."""
    max_body_bytes: int = Field(default=8 * 2**20, ge=1024)
    max_connections: int | None = Field(default=None, ge=1)
    """None: as many as the limit of open files allows."""
    head_timeout_s: float = Field(default=10.0, gt=0)
    body_timeout_s: float = Field(default=30.0, gt=0)
    keep_alive_s: float = Field(default=30.0, gt=0)
    """How long a connection may wait for its next request. A load balancer in front should close idle ones earlier."""
    stalled_client_s: float = Field(default=30.0, gt=0)
    """How long a client may leave its answer unread."""
    cors_origins: Annotated[tuple[Origin, ...], NoDecode, Listed] = ()
    trusted_proxies: Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode, Listed] = ()
    """Proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted."""
    outbound_private_networks: Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode, Listed] = ()
    """Private networks in which tenants' webhooks and guardrails, and tools at hosts of `tool_hosts`, may be. All other
    addresses must be public."""
    tool_hosts: Annotated[tuple[ToolHost, ...], NoDecode, Listed] = ()
    """Hosts at which tools may be: `host` or `*.domain`, optionally with `:port`. Empty: every public address."""
    tool_max_rounds: int = Field(default=8, ge=1, le=32)
    """Rounds of tool calls within one request, whatever the tools themselves allow."""
    session_ttl_s: int = Field(default=3600, ge=1, le=30 * 86_400)
    """How long a session is kept after its last request."""
    session_max_bytes: int = Field(default=2**20, ge=1024, le=16 * 2**20)
    """Size of a session's messages as JSON; beyond it the oldest turns are dropped."""
    response_ttl_s: int | None = Field(default=None, ge=1, le=30 * 86_400)
    """How long stored responses are kept; None: as long as sessions."""
    audit_contents_kept_days: int | None = Field(default=None, ge=1)
    """After this time rows of the audit log lose their contents; None: never."""
    batches_kept_days: int | None = Field(default=None, ge=1)
    """Counted from a batch's end; None: for ever. A batch's files have their own retention time."""
    sessions_per_tenant: int = Field(default=10_000, ge=1)
    """Sessions that a tenant may have at a time."""
    cache_embedding_model: str | None = None
    """The embedding model or pool by which messages are compared if a tenant's cache is `semantic`."""
    tool_audit_arguments: bool = False
    """Whether the audit log also records the arguments of tool calls."""
    invoice_font: FilePath | None = None
    """A TrueType font for PDF invoices. None: a font that covers Western European letters."""
    redis_deadline_ms: int = Field(default=50, ge=1, le=10_000)
    connect_timeout_s: float = Field(default=2.0, gt=0)
    idle_timeout_s: float = Field(default=120.0, gt=0)
    """How long a worker may stay silent within a request."""
    worker_silence_s: float = Field(default=15.0, gt=5)
    """The same for our own workers while they generate: they report every 5 s that they are alive."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    saturated_waiting: int = Field(default=10, ge=0)
    """A replica with more requests waiting is full."""
    saturated_free_kv: float = Field(default=0.02, ge=0, le=0.5)
    """A replica with a smaller share of free KV blocks is full."""
    continue_wait_s: float = Field(default=10.0, ge=0)
    """How long a stream whose replica died may pause until another replica can continue it."""
    drain_s: int = Field(default=30, ge=0)
    """How long streams may go on after SIGTERM."""
    router_weights: Path | None = None
    """A weights file written by `tiergate router train`; None: the shipped weights."""
    router_shadow_weights: Path | None = None
    """A weights file that scores every request but decides nothing: /metrics shows what it would have done."""
    pools: dict[str, PoolConfig] = Field(default_factory=dict)

    @field_validator("worker_other_keys")
    @classmethod
    def _stand_beside_one(cls, keys: tuple[SecretStr, ...], given: ValidationInfo) -> tuple[SecretStr, ...]:
        if keys and given.data.get("worker_key") is None:
            raise ValueError("needs TIERGATE_WORKER_KEY, beside which they are used")
        return keys

    @cached_property
    def overflow_pools(self) -> dict[str, str]:
        """Overflow name -> name of the pool it belongs to. An overflow is itself treated as a pool."""
        return {f"{name}{OVERFLOW_SUFFIX}": name for name, pool in self.pools.items() if pool.overflow is not None}

    @property
    def all_pools(self) -> dict[str, PoolConfig]:
        """The configured pools and their overflows."""
        found = dict(self.pools)
        for name, of in self.overflow_pools.items():
            pool = self.pools[of]
            assert pool.overflow is not None
            found[name] = _as_pool(pool.overflow, context_window=pool.context_window)
        return found

    @field_validator("pools")
    @classmethod
    def _have_names_of_their_own(cls, pools: dict[str, PoolConfig]) -> dict[str, PoolConfig]:
        for name in pools:
            if name.endswith(OVERFLOW_SUFFIX):
                raise ValueError(f"{name}: names that end in {OVERFLOW_SUFFIX} are those of pools' overflows")
        return pools

    @property
    def worker_keys(self) -> tuple[str, ...]:
        """Keys of our own workers, the likeliest first. Without keys, workers listen on loopback only."""
        found = () if self.worker_key is None else (self.worker_key, *self.worker_other_keys)
        return tuple(key.get_secret_value() for key in found)

    @property
    def peppers(self) -> Peppers:
        following = self.next_key_pepper
        return Peppers(
            self.key_pepper.get_secret_value(),
            old=tuple(pepper.get_secret_value() for pepper in self.old_key_peppers),
            upcoming=None if following is None else following.get_secret_value(),
        )

    @property
    def store_url(self) -> str:
        return self.artifacts_url or str(self.data_dir / "artifacts")

    @property
    def sql_url(self) -> str:
        return self.database_url or f"sqlite+aiosqlite:///{self.data_dir / 'tiergate.db'}"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def _as_pool(overflow: OverflowConfig, *, context_window: int) -> PoolConfig:
    member = MemberConfig(
        url=overflow.url, engine="openai", model=overflow.model_at_provider, api_key_env=overflow.api_key_env
    )
    return PoolConfig(model=overflow.model, context_window=overflow.context_window or context_window, members=(member,))


def load_settings(config: Path | None = None, **overrides: Any) -> GatewaySettings:
    """Read the environment and `config` (default: `tiergate.toml`, if it exists).

    Raises ConfigError naming the field."""
    if config is not None and not config.is_file():
        raise ConfigError(f"--config: there is no file {config}")
    path = config or DEFAULT_CONFIG
    try:
        return _bound_to(path)(**overrides)
    except ValidationError as error:
        raise ConfigError(_first_line(error, path)) from error
    except (TOMLDecodeError, SettingsError) as error:
        # TOMLDecodeError: a malformed file. SettingsError: a variable that should contain JSON but does not.
        name = str(path) if isinstance(error, TOMLDecodeError) else "TIERGATE_POOLS"
        raise ConfigError(f"{name}: {str(error).splitlines()[0]}") from error


def _bound_to(path: Path) -> type[GatewaySettings]:
    """A settings class that reads `path`: pydantic-settings takes the file name from the class."""
    config = SettingsConfigDict(**{**GatewaySettings.model_config, "toml_file": path})
    return type("GatewaySettings", (GatewaySettings,), {"model_config": config, "__module__": __name__})


def _first_line(error: ValidationError, path: Path) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    parts = [str(part) for part in first["loc"]] or ["settings"]
    if first["type"] == "extra_forbidden":
        return f"{'.'.join(parts)}: {path} may not contain this setting"
    name = ".".join(parts) if len(parts) > 1 else f"{ENV_PREFIX}{parts[0].upper()}"
    return f"{name}: {first['msg']}"
