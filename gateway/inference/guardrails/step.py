"""The step itself: check the request, send it, and check the answer on its way, whether a member or the cache gives
it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from gateway.domain.guardrails.terms import GuardrailTerms
from gateway.guardrails.checking import Check
from gateway.guardrails.errors import ContentFiltered, GuardrailUnavailable
from gateway.guardrails.texts import input_field, texts_of
from gateway.inference.accounts import Accounts
from gateway.inference.exchange import Exchange
from gateway.inference.guardrails.answer import AnswerCut, GuardedAnswer, note_skipped
from gateway.inference.usage_record import UsageRecord
from gateway.services import Services
from protocol.embeddings import EmbeddingsRequest

Send = Callable[[Exchange], Awaitable[None]]
"""Sends the request; its answer goes to this exchange. Raises GatewayError."""


async def send_guarded(
    services: Services, exchange: Exchange, record: UsageRecord, accounts: Accounts, send: Send
) -> None:
    """As `send`, but also raises ContentFiltered and GuardrailUnavailable."""
    accepted = record.accepted
    guardrails = accepted.catalog.guardrails_of(accepted.principal.tenant_id)
    await _check_input(services, exchange, record, [each for each in guardrails if each.is_for("input")])
    for_output = [each for each in guardrails if each.is_for("output")]
    if not for_output or isinstance(accepted.request, EmbeddingsRequest):
        return await send(exchange)
    answer = GuardedAnswer(services, exchange, record, for_output)
    inner = _exchange_to(answer, exchange)
    try:
        await send(inner)
    except AnswerCut:
        await answer.end(accounts)
    except GuardrailUnavailable as error:
        if error.is_tenants:
            # The tenant's hook has received the text, so its failure must not be a way to get answers free of charge.
            record.note_error(error)
            await accounts.close("cancelled")
        raise


async def _check_input(
    services: Services, exchange: Exchange, record: UsageRecord, guardrails: Sequence[GuardrailTerms]
) -> None:
    if not guardrails:
        return
    # The guardrails compute elsewhere from here on, so the request no longer counts against this process's capacity.
    exchange.end_preparation()
    accepted = record.accepted
    check = Check("input", texts_of(accepted.request), accepted.principal.tenant_text, accepted.request_id)
    verdict = await services.guard.check(guardrails, check)
    for finding in verdict.blocked.values():
        raise ContentFiltered(finding.guardrail, finding.categories, param=input_field(accepted.request))
    if verdict.is_skipped:
        await note_skipped(exchange)


def _exchange_to(answer: GuardedAnswer, client: Exchange) -> Exchange:
    """An exchange that stands in for the client's and feeds `answer`."""
    inner = Exchange({"path": client.path, "headers": ()}, _no_body, answer.take)
    inner.extra_headers, inner.preparation, inner.trace = client.extra_headers, client.preparation, client.trace
    inner.listeners.append(answer)
    return inner


async def _no_body() -> Any:
    raise AssertionError("the client's body was read")
