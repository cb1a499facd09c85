"""An answer that is no stream: read whole, its figures noted, and only then passed on."""

import aiohttp
import msgspec

from gateway.completions.books import Books
from gateway.completions.exchange import Exchange
from gateway.completions.figures import ForeignUsage
from gateway.completions.record import Record
from gateway.upstream.client import MemberFailed, read_all
from protocol.accounting import ACCOUNTING_HEADER, Accounting
from router.fleet import Member
from router.policy import Decision


class _Answer(msgspec.Struct):
    usage: ForeignUsage | None = None


_ACCOUNTING = msgspec.json.Decoder(Accounting)
_ANSWER = msgspec.json.Decoder(_Answer)


async def pass_whole(
    response: aiohttp.ClientResponse,
    decision: Decision,
    member: Member,
    exchange: Exchange,
    record: Record,
    books: Books,
) -> None:
    """Raises MemberFailed."""
    payload = await read_all(response)
    accounting = response.headers.get(ACCOUNTING_HEADER)
    try:
        if accounting is not None:
            record.note_accounting(_ACCOUNTING.decode(accounting))
        else:
            record.note_foreign_usage(_ANSWER.decode(payload).usage)
        if member.engine == "openai":
            payload = msgspec.json.encode({**msgspec.json.decode(payload), "model": decision.model_id})
    except (msgspec.MsgspecError, TypeError) as error:
        raise MemberFailed(f"{member.worker_id} sent no JSON that we understand: {error}") from error
    record.is_delivered = True
    await books.close("ok")
    await exchange.answer(200, {"content-type": "application/json"}, payload)


def route_headers(record: Record, decision: Decision) -> dict[str, str]:
    headers = {
        "x-tiergate-model": decision.model_id,
        "x-tiergate-pool": decision.pool,
        "x-tiergate-route": decision.reason,
        "x-tiergate-complexity": f"{decision.complexity:.3f}",
    }
    if decision.adapter is not None and record.measured.adapter_name is not None:
        headers["x-tiergate-adapter"] = record.measured.adapter_name
    return headers
