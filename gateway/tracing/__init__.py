"""OpenTelemetry traces of what models compute, if `TIERGATE_OTLP_ENDPOINT` names a collector.

Each request has a span with its steps as events and, below it, a client span for each call to a replica, with the
attributes of the GenAI conventions (github.com/open-telemetry/semantic-conventions-genai; still in development).
Nothing of OpenTelemetry is imported before `open_tracing` has an endpoint.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.tracing.spans import Tracing

SERVICE_NAME = "tiergate-gateway"
EXPORT_DEADLINE_S = 5


@asynccontextmanager
async def open_tracing(endpoint: str | None, *, ratio: float) -> AsyncIterator["Tracing | None"]:
    """None without an endpoint. Exports remaining spans at the end, or gives up. Raises ImportError without the SDK."""
    if endpoint is None:
        yield None
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    from gateway.tracing.spans import Tracing

    share = TraceIdRatioBased(ratio)
    provider = TracerProvider(
        # A client that asks to be traced does not override the operator's ratio.
        sampler=ParentBased(share, remote_parent_sampled=share),
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence.
        resource=Resource({"service.name": SERVICE_NAME}).merge(OTELResourceDetector().detect()),
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(f"{endpoint}/v1/traces", timeout=EXPORT_DEADLINE_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    try:
        yield Tracing(provider.get_tracer("tiergate"))
    finally:
        await asyncio.to_thread(provider.shutdown)
