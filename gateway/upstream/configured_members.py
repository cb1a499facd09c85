"""The members that the configuration lists: checked for health, because they do not register."""

import asyncio
import logging

import msgspec

from gateway.settings import GatewaySettings, MemberConfig
from gateway.upstream.client import MemberFailed, WorkerClient
from protocol.load import LoadReport
from router.fleet import Member

_log = logging.getLogger(__name__)

CHECK_S = 2.0
CHECK_DEADLINE_S = 2.0


class FixedMembers:
    def __init__(self, settings: GatewaySettings, client: WorkerClient) -> None:
        self._client = client
        self._configured = [
            (name, pool.model, member) for name, pool in settings.pools.items() for member in pool.members
        ]
        self._current: list[tuple[str, Member]] = [
            (name, _member(config, model, is_healthy=False)) for name, model, config in self._configured
        ]

    def members(self) -> list[tuple[str, Member]]:
        """(pool, member), each as last seen."""
        return self._current

    async def check_forever(self) -> None:
        while True:
            await self.check()
            await asyncio.sleep(CHECK_S)

    async def check(self) -> None:
        seen = await asyncio.gather(*(self._check_one(model, config) for _, model, config in self._configured))
        self._current = [(name, member) for (name, _, _), member in zip(self._configured, seen, strict=True)]

    async def _check_one(self, model: str, config: MemberConfig) -> Member:
        # Any answer below 500 tells that a foreign server is up: not all let our key list models.
        path = "/load" if config.engine == "tiergate" else "/v1/models"
        try:
            status, body = await self._client.get(config.url, path, engine=config.engine, deadline_s=CHECK_DEADLINE_S)
            if config.engine == "openai":
                return _member(config, model, is_healthy=status < 500)
            load = msgspec.json.decode(body, type=LoadReport) if status == 200 else None
            return _member(config, model, load=load, is_healthy=load is not None)
        except (MemberFailed, msgspec.MsgspecError) as error:
            _log.debug("the member %s is not healthy: %s", config.url, error)
            return _member(config, model, is_healthy=False)


def _member(config: MemberConfig, model: str, *, is_healthy: bool, load: LoadReport | None = None) -> Member:
    return Member(
        worker_id=load.worker_id if load else config.url,
        url=config.url,
        engine=config.engine,
        model_name=config.model or (load.model if load else model),
        load=load,
        is_healthy=is_healthy,
    )
