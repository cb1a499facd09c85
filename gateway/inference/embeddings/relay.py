"""One try at one replica: send the texts, read the vectors, and close the accounts before the client gets them."""

from typing import Any, cast

import msgspec

from gateway.inference.accounts import Accounts
from gateway.inference.exchange import Exchange
from gateway.inference.stream import note_route, pass_whole, send_to
from gateway.inference.usage_record import UsageRecord
from gateway.inference.validate import Accepted
from gateway.services import Services
from protocol.embeddings import EmbeddingsRequest
from router.fleet import Member
from router.policy import Decision


class EmbeddingsRelay:
    """Relays an embeddings request. `record` must be one's."""

    def __init__(self, services: Services, exchange: Exchange, record: UsageRecord, accounts: Accounts) -> None:
        self._services = services
        self._exchange = exchange
        self._accepted = cast(Accepted[EmbeddingsRequest], record.accepted)
        self._record = record
        self._accounts = accounts

    def num_kept(self, member: Member) -> int:
        return 0

    async def run(self, decision: Decision, member: Member) -> None:
        """Raises MemberFailed or MemberRefused."""
        body = _body(self._accepted, decision, member)
        answer = await send_to(member, body, self._services, self._record)
        try:
            note_route(self._exchange, self._record, decision)
            await pass_whole(answer, decision, member, self._exchange, self._record, self._accounts)
        finally:
            answer.close()


def _body(accepted: Accepted[EmbeddingsRequest], decision: Decision, member: Member) -> bytes:
    """The body for the member. The client's own priority and cache salt are dropped."""
    request = accepted.request
    fields: dict[str, Any] = {
        "model": decision.adapter or member.model_name,
        "input": request.input,
        "encoding_format": request.encoding_format,
    }
    if request.dimensions is not None:
        fields["dimensions"] = request.dimensions
    if member.engine == "tiergate":
        fields |= {"priority": accepted.tier.priority, "cache_salt": accepted.principal.tenant_text}
    return msgspec.json.encode(fields)
