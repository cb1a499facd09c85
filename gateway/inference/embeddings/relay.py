"""One attempt at one replica: the texts there, the vectors back, accounts closed before the client gets them."""

from typing import Any

import msgspec

from gateway.inference.accounts import Accounts
from gateway.inference.exchange import Exchange
from gateway.inference.stream import pass_whole, route_headers, send_to
from gateway.inference.usage_record import UsageRecord
from gateway.inference.validate import Accepted
from gateway.services import Services
from protocol.embeddings import EmbeddingsRequest
from router.fleet import Member
from router.policy import Decision


class EmbeddingsRelay:
    def __init__(
        self,
        services: Services,
        exchange: Exchange,
        asked: Accepted[EmbeddingsRequest],
        record: UsageRecord,
        accounts: Accounts,
    ) -> None:
        self._services = services
        self._exchange = exchange
        self._asked = asked
        self._record = record
        self._books = accounts

    async def run(self, decision: Decision, member: Member) -> None:
        """Raises MemberFailed or MemberRefused."""
        body = _body(self._asked, decision, member)
        async with send_to(member, body, self._services, self._asked) as response:
            self._exchange.extra_headers |= route_headers(self._record, decision)
            await pass_whole(response, decision, member, self._exchange, self._record, self._books)


def _body(asked: Accepted[EmbeddingsRequest], decision: Decision, member: Member) -> bytes:
    """The client's own priority and salt are dropped."""
    request = asked.request
    fields: dict[str, Any] = {
        "model": decision.adapter or member.model_name,
        "input": request.input,
        "encoding_format": request.encoding_format,
    }
    if request.dimensions is not None:
        fields["dimensions"] = request.dimensions
    if member.engine == "tiergate":
        fields |= {"priority": asked.tier.priority, "cache_salt": str(asked.principal.tenant_id)}
    return msgspec.json.encode(fields)
