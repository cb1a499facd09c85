"""A request's spans. They never hold a prompt, an answer or a key, and so no message of an exception either."""

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from protocol.usage import UsageEvent
from router.fleet import Member

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
_SAMPLING = ("max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed")
_PROPAGATED = (b"traceparent", b"tracestate")


class Tracing:
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, path: str, headers: Mapping[bytes, bytes]) -> "RequestTrace":
        """`headers`: the client's; their `traceparent` becomes the parent of the request's span."""
        carrier = {name.decode(): headers[name].decode("latin-1") for name in _PROPAGATED if name in headers}
        span = self._tracer.start_span(
            f"POST {path}",
            context=self._propagator.extract(carrier, context=Context()),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": "POST", "http.route": path, "url.path": path},
        )
        return RequestTrace(self, span, path)

    def start(self, name: str, context: Context, **more: Any) -> Span:
        return self._tracer.start_span(name, context=context, **more)

    def headers_of(self, span: Span) -> dict[str, str]:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=set_span_in_context(span))
        return carrier


class RequestTrace:
    """One request's spans. `begin_call` and `end_call` come in pairs; `end` comes last."""

    def __init__(self, tracing: Tracing, span: Span, path: str) -> None:
        self._tracing = tracing
        self._span = span
        self._context = set_span_in_context(span)
        self._path = path
        self._operation = _OPERATIONS.get(path, path)
        self._began_ns = time.time_ns()
        self._call: Span | None = None
        self._call_began_ns = 0

    def begin_call(self, member: Member, *, model: str, request: object) -> None:
        """`request`: the client's; the span shows its sampling parameters. `model`: the name at the replica."""
        place = urlsplit(member.url)
        sampling = {name: getattr(request, name, None) for name in _SAMPLING}
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": self._operation,
            "gen_ai.provider.name": member.engine,
            "gen_ai.request.model": model,
            "server.address": place.hostname or "",
            "server.port": place.port or (443 if place.scheme == "https" else 80),
            "tiergate.worker.id": member.worker_id,
            **{f"gen_ai.request.{name}": value for name, value in sampling.items() if value is not None},
        }
        if getattr(request, "stream", None):
            attributes["gen_ai.request.stream"] = True
        if getattr(request, "n", None) not in (None, 1):
            attributes["gen_ai.request.choice.count"] = request.n  # type: ignore[attr-defined]
        name = f"{self._operation} {model}"
        self._call_began_ns = time.time_ns()
        self._call = self._tracing.start(name, self._context, kind=SpanKind.CLIENT, attributes=attributes)

    def headers(self) -> dict[str, str]:
        """Headers that make the replica's own spans part of the call under way."""
        return self._tracing.headers_of(self._call or self._span)

    def end_call(self, failure: str | None) -> None:
        """`failure`: the class of the failure, None on success."""
        call, self._call = self._call, None
        assert call is not None
        if failure is not None:
            _fail(call, failure)
        call.end()

    def begin_round(self, number: int) -> "RequestTrace":
        """Begin a further round, from the second on, of a request that takes several. Call `end_round` on it."""
        span = self._tracing.start(f"round {number}", self._context, kind=SpanKind.INTERNAL)
        return RequestTrace(self._tracing, span, self._path)

    def end_round(self, failure: str | None) -> None:
        if failure is not None:
            _fail(self._span, failure)
        self._span.end()

    def begin_tool(self, name: str) -> Span:
        """Begin a call of a server tool; several may be under way. Pass the span to `end_tool`."""
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "extension",
        }
        return self._tracing.start(f"execute_tool {name}", self._context, kind=SpanKind.CLIENT, attributes=attributes)

    def end_tool(self, span: Span, status: str) -> None:
        if status != "ok":
            _fail(span, status)
        span.end()

    def note_usage(self, event: UsageEvent) -> None:
        """Record the request's usage, and when its steps were over."""
        self._span.set_attributes(
            {
                "tiergate.request.id": event.request_id,
                "tiergate.tenant.id": event.tenant_id,
                "tiergate.tier": event.tier,
                "tiergate.pool": event.pool,
                "tiergate.route.reason": event.route_reason,
                "tiergate.status": event.status,
                "gen_ai.request.model": event.requested_model,
            }
        )
        steps = event.steps_ms
        self._note_step(self._span, "authenticated", steps.authenticate)
        self._note_step(self._span, "admitted", steps.admit)
        # If the client has left, the call ended before its usage is known.
        self._describe(self._call or self._span, event)

    def _describe(self, call: Span, event: UsageEvent) -> None:
        call.set_attributes(
            {
                "gen_ai.response.model": event.model_version,
                "gen_ai.usage.input_tokens": event.prompt_tokens,
                "gen_ai.usage.output_tokens": event.completion_tokens,
                "gen_ai.usage.cache_read.input_tokens": event.cached_prompt_tokens,
            }
        )
        if event.finish_reason is not None:
            call.set_attribute("gen_ai.response.finish_reasons", [event.finish_reason])
        self._note_step(call, "computing", event.steps_ms.queue)
        self._note_step(call, "first token", event.ttft_ms)
        if event.ttft_ms is not None:
            since_call_ns = self._at_ns(event.ttft_ms) - self._call_began_ns
            call.set_attribute("gen_ai.response.time_to_first_chunk", max(0.0, since_call_ns / 1e9))

    def end(self, status: int, failure: str | None) -> None:
        """`failure`: the code of the error that the client got, if any."""
        self._span.set_attribute("http.response.status_code", status)
        if failure is not None:
            self._span.set_attribute("error.type", failure)
        if status >= 500:
            _fail(self._span, failure or str(status))
        self._span.end()

    def _note_step(self, span: Span, name: str, over_ms: float | None) -> None:
        # An event costs a fifth of a span.
        if over_ms is not None:
            span.add_event(name, timestamp=self._at_ns(over_ms))

    def _at_ns(self, since_ms: float) -> int:
        return self._began_ns + int(since_ms * 1e6)


def _fail(span: Span, failure: str) -> None:
    span.set_attribute("error.type", failure)
    # Without a description: a message may quote what the client wrote.
    span.set_status(Status(StatusCode.ERROR))
