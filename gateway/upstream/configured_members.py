"""The members listed in the configuration. We check their health, because they do not register."""

import asyncio
import logging
import time

import msgspec

from gateway.settings import GatewaySettings, MemberConfig, PoolConfig
from gateway.upstream.client import MemberFailed, WorkerClient
from gateway.upstream.foreign_load import ForeignLoad, read_metrics
from protocol.foreign_json import UNREADABLE
from protocol.load import LoadReport
from router.fleet import Member

_log = logging.getLogger(__name__)

CHECK_S = 2.0
CHECK_DEADLINE_S = 2.0
ASK_METRICS_AGAIN_S = 60.0
_SHARES = 1000
"""The number of blocks assumed for a KV cache whose usage is reported as a number from 0 to 1."""
_SLOTS = 64
"""The number of slots assumed for a foreign server, since it does not report them."""


class FixedMembers:
    def __init__(self, settings: GatewaySettings, client: WorkerClient) -> None:
        self._client = client
        self._configured = [
            (name, pool, member) for name, pool in settings.all_pools.items() for member in pool.members
        ]
        self._current: list[tuple[str, Member]] = [
            (name, _member(config, pool.model, is_healthy=False)) for name, pool, config in self._configured
        ]
        self._ask_metrics_at: dict[str, float] = {}

    def members(self) -> list[tuple[str, Member]]:
        """(pool name, member) for each member, as last seen."""
        return self._current

    async def check_forever(self) -> None:
        while True:
            await self.check()
            await asyncio.sleep(CHECK_S)

    async def check(self) -> None:
        seen = await asyncio.gather(*(self._check_one(pool, config) for _, pool, config in self._configured))
        self._current = [(name, member) for (name, _, _), member in zip(self._configured, seen, strict=True)]

    async def _check_one(self, pool: PoolConfig, config: MemberConfig) -> Member:
        try:
            if config.engine == "openai":
                return await self._check_foreign(pool, config)
            status, body = await self._get(config, "/load")
            load = msgspec.json.decode(body, type=LoadReport) if status == 200 else None
            return _member(config, pool.model, load=load, is_healthy=load is not None)
        except (MemberFailed, *UNREADABLE) as error:
            _log.debug("the member %s is not healthy: %s", config.url, error)
            return _member(config, pool.model, is_healthy=False)

    async def _check_foreign(self, pool: PoolConfig, config: MemberConfig) -> Member:
        # Any status below 500 shows that a foreign server is up: not every server lets our key list models.
        status, body = await self._get(config, "/v1/models")
        load = await self._foreign_load(pool, config, body) if status == 200 else None
        return _member(config, pool.model, load=load, is_healthy=status < 500)

    async def _foreign_load(self, pool: PoolConfig, config: MemberConfig, models: bytes) -> LoadReport | None:
        """The load of a server that reports it, in the format of our own workers' reports. Servers that do not report
        it are polled rarely."""
        now = time.monotonic()
        if now < self._ask_metrics_at.get(config.url, 0.0):
            return None
        try:
            names = {model.id for model in _MODELS.decode(models).data}
            status, text = await self._get(config, "/metrics")
        except (MemberFailed, *UNREADABLE):
            # The server has answered /v1/models, so it still counts as up.
            return None
        told = read_metrics(text) if status == 200 else None
        if told is None:
            self._ask_metrics_at[config.url] = now + ASK_METRICS_AGAIN_S
            return None
        return _as_report(told, pool, config, names)

    async def _get(self, config: MemberConfig, path: str) -> tuple[int, bytes]:
        return await self._client.get(config.url, path, engine=config.engine, deadline_s=CHECK_DEADLINE_S)


class _ListedModel(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_ListedModel]


_MODELS = msgspec.json.Decoder(_ModelList)


def _as_report(told: ForeignLoad, pool: PoolConfig, config: MemberConfig, names: set[str]) -> LoadReport:
    """names: everything that the server serves, that is, the model and its adapters."""
    num_free = _SHARES if told.kv_usage is None else round(_SHARES * (1 - told.kv_usage))
    model = config.model or pool.model
    return LoadReport(
        worker_id=config.url,
        model=model,
        model_version="",
        pool=None,
        adapters=tuple(sorted(names - {model})),
        num_running=told.num_running,
        num_waiting=told.num_waiting,
        max_num_seqs=_SLOTS,
        max_waiting=_SLOTS,
        max_model_len=pool.context_window,
        num_blocks=_SHARES,
        num_free_blocks=num_free,
        block_size=0,
        is_draining=False,
        prompt_tokens_total=0,
        completion_tokens_total=0,
        discarded_tokens_total=0,
    )


def _member(config: MemberConfig, model: str, *, is_healthy: bool, load: LoadReport | None = None) -> Member:
    return Member(
        worker_id=load.worker_id if load else config.url,
        url=config.url,
        engine=config.engine,
        model_name=config.model or (load.model if load else model),
        lacks=config.lacks,
        load=load,
        is_healthy=is_healthy,
    )
