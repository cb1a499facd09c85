"""A small OpenTelemetry trace collector, over real HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    url: str = ""
    received: list[bytes] = field(default_factory=list)
    """The request bodies, in order."""

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for body in self.received
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def services(self) -> set[str]:
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.received]
        resources = [each.resource for request in requests for each in request.resource_spans]
        return {
            attribute.value.string_value
            for each in resources
            for attribute in each.attributes
            if attribute.key == "service.name"
        }

    def named(self, name: str) -> list[Span]:
        """The spans of this name, ordered by start time."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.start_time_unix_nano)


def attributes(span: Span) -> dict[str, Any]:
    found = {}
    for attribute in span.attributes:
        kind = attribute.value.WhichOneof("value")
        value = getattr(attribute.value, kind)
        found[attribute.key] = [each.string_value for each in value.values] if kind == "array_value" else value
    return found


@asynccontextmanager
async def serving_collector() -> AsyncIterator[Collector]:
    collector = Collector()

    async def take(request: web.Request) -> web.Response:
        assert request.content_type == "application/x-protobuf"
        collector.received.append(await request.read())
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(), content_type="application/x-protobuf"
        )

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield collector
    finally:
        await runner.cleanup()
