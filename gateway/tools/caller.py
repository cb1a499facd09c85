"""One tool call: checked arguments, a bounded POST, and in any case a result that the model can read."""

import json
import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from gateway.clock import utc_now
from gateway.domain.tools.hosts import check_host
from gateway.domain.tools.schemas import problem_with
from gateway.domain.tools.sealing import CannotUnseal, unseal
from gateway.http.errors import InvalidRequest
from gateway.http.outbound import Outbound, OutboundFailed
from gateway.metrics import TENANTS_OWN, Metrics
from gateway.peppers import Peppers
from gateway.tools.calls import ToolCall, ToolResult, failure
from gateway.tools.trail import AuditTrail

MAX_ARGUMENT_BYTES = 64 * 1024
MAX_CALLS = 512
"""Limit for calls under way in this process; a call beyond it fails as `busy`, since gateways hold no queues."""
MAX_CALLS_OF_TENANT = 32


class ToolCaller:
    def __init__(
        self, outbound: Outbound, trail: AuditTrail, metrics: Metrics, *, peppers: Peppers, allowed_hosts: Sequence[str]
    ) -> None:
        self._outbound = outbound
        self._trail = trail
        self._metrics = metrics
        self._peppers = peppers
        self._allowed_hosts = allowed_hosts
        self._under_way: Counter[str] = Counter()
        """Calls by tenant."""

    async def call(self, call: ToolCall) -> ToolResult:
        """Raises nothing that the tool caused. A cancelled call closes its connection and is counted as well."""
        began_s = time.monotonic()
        span = call.trace.begin_tool(call.tool.name) if call.trace is not None else None
        result = failure("cancelled", "the request was given up")
        try:
            result = await self._attempt(call)
        finally:
            duration_s = time.monotonic() - began_s
            label = call.tool.name if call.tool.tenant_id is None else TENANTS_OWN
            self._metrics.count_tool_call(label, result.status, duration_s)
            if call.trace is not None and span is not None:
                call.trace.end_tool(span, result.status)
            self._trail.note(call, result, duration_ms=duration_s * 1000, now=utc_now())
        return result

    async def _attempt(self, call: ToolCall) -> ToolResult:
        problem, arguments = _read_arguments(call)
        if problem is not None:
            return failure("bad_arguments", problem)
        tenant = call.principal.tenant_text
        if self._under_way[tenant] >= MAX_CALLS_OF_TENANT or self._under_way.total() >= MAX_CALLS:
            return failure("busy", "too many tools run at the moment; go on without this one")
        self._under_way[tenant] += 1
        try:
            return await self._send(call, arguments)
        finally:
            self._under_way[tenant] -= 1
            if not self._under_way[tenant]:
                del self._under_way[tenant]

    async def _send(self, call: ToolCall, arguments: bytes) -> ToolResult:
        tool = call.tool
        try:
            # The operator's list may have changed since the tool was registered.
            check_host(tool.url, self._allowed_hosts)
            headers = self._headers(call)
            answer = await self._outbound.post(
                tool.url,
                arguments,
                headers,
                total_s=tool.timeout_s,
                max_answer_bytes=tool.max_result_bytes,
            )
        except CannotUnseal:
            return failure("no_credential", "the tool cannot be used until its owner gives its credential again")
        except InvalidRequest:
            return failure("refused", "the tool may not be called where it is")
        except OutboundFailed as error:
            return failure(error.reason, f"the tool failed: {error}")
        if not 200 <= answer.status < 300:
            return failure("http_error", f"the tool failed: it answered {answer.status}", http_status=answer.status)
        return _read_answer(answer.body, answer.status)

    def _headers(self, call: ToolCall) -> dict[str, str]:
        """Raises CannotUnseal."""
        tool = call.tool
        headers = {
            "content-type": "application/json",
            "accept": "application/json",
            "x-tiergate-tool": tool.name,
            "x-tiergate-tenant": call.principal.tenant_text,
            "x-tiergate-request-id": call.request_id,
            "x-tiergate-call-id": call.call_id,
        }
        if tool.credential_header is not None and tool.sealed_credential is not None:
            headers[tool.credential_header] = unseal(
                tool.sealed_credential, tool_id=tool.id, url=tool.url, peppers=self._peppers
            )
        return headers


def _read_arguments(call: ToolCall) -> tuple[str | None, bytes]:
    """What is wrong with the arguments, if anything, and the bytes to send: encoded anew, so that the tool reads what
    was checked."""
    if len(call.arguments.encode(errors="replace")) > MAX_ARGUMENT_BYTES:
        return f"the arguments are longer than {MAX_ARGUMENT_BYTES} bytes", b""
    try:
        # Models leave out the arguments of tools that take none.
        arguments = msgspec.json.decode(call.arguments or "{}")
        return problem_with(arguments, call.tool.parameters), json.dumps(arguments).encode()
    except (ValueError, RecursionError) as error:
        return f"the arguments are no JSON that can be read: {error}"[:300], b""


def _read_answer(body: bytes, http_status: int) -> ToolResult:
    try:
        msgspec.json.decode(body)
        text = body.decode()
    except (ValueError, RecursionError):
        return failure("not_json", "the tool failed: its answer is no JSON", http_status=http_status)
    return ToolResult("ok", text, http_status, len(body))
