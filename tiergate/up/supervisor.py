"""Runs services together: started in order, stopped in reverse, and if one crashes all are stopped."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tiergate.up.console import Console
from tiergate.up.service import Crashed, Service, Spec


class Supervisor:
    """`needs` of a service is awaited before the service is started."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._services: list[tuple[Service, Callable[[], Awaitable[object]] | None]] = []
        self._stop = asyncio.Event()
        self._crash: Crashed | None = None

    def add(self, spec: Spec, *, needs: Callable[[], Awaitable[object]] | None = None) -> Service:
        service = Service(spec, self._console)
        self._services.append((service, needs))
        return service

    @property
    def services(self) -> Sequence[Service]:
        return [service for service, _ in self._services]

    def request_stop(self, crash: Crashed | None = None) -> None:
        self._crash = self._crash or crash
        self._stop.set()

    def kill(self) -> None:
        for service in self.services:
            service.kill()

    async def run(self, on_start: Callable[[], Awaitable[None]]) -> None:
        """Run all services, and `on_start` beside them, until `request_stop` or a crash. Raises Crashed."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._keep(service, needs)) for service, needs in self._services]
                tasks.append(group.create_task(self._begin(on_start)))
                await self._stop.wait()
                tasks[-1].cancel()
                await self._stop_all()
                for task in tasks:
                    task.cancel()
        finally:
            self.kill()
        if self._crash is not None:
            raise self._crash

    async def _keep(self, service: Service, needs: Callable[[], Awaitable[object]] | None) -> None:
        try:
            if needs is not None:
                await needs()
            await service.run()
        except Crashed as crash:
            self.request_stop(crash)

    async def _begin(self, on_start: Callable[[], Awaitable[None]]) -> None:
        try:
            await on_start()
        except Crashed as crash:
            self.request_stop(crash)

    async def _stop_all(self) -> None:
        running = [service for service in self.services if service.pid is not None]
        if running:
            self._console.say("stopping " + ", ".join(service.spec.name for service in reversed(running)))
        for service in reversed(self.services):
            await service.stop()
