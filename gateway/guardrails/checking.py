"""One check: all guardrails are asked at the same time about the same texts, each within its deadline."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.domain.guardrails.terms import GuardrailTerms, Side
from gateway.domain.sealing import CannotUnseal
from gateway.guardrails.errors import GuardrailUnavailable
from gateway.guardrails.hook import BadAnswer, Findings, max_answer_bytes, question, read_answer
from gateway.http.outbound import Outbound, OutboundFailed
from gateway.metrics import TENANTS_OWN, Metrics
from gateway.peppers import Peppers

_log = logging.getLogger(__name__)

MAX_CHECKS = 1024
"""Limit for checks under way in this process."""
MAX_CHECKS_OF_TENANT = 256
"""Limit per tenant: a hook that hangs must not use up the checks of other tenants."""


@dataclass(frozen=True, slots=True)
class Check:
    """Texts to be checked. No text is empty."""

    side: Side
    texts: Sequence[str]
    tenant_id: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Finding:
    guardrail: str
    categories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    blocked: Mapping[int, Finding]
    """Index of a blocked text -> the finding."""
    is_skipped: bool
    """A guardrail that fails open could not check."""


class _Failed(Exception):
    def __init__(self, words: str, *, reason: str) -> None:
        super().__init__(words)
        self.reason = reason


class Guard:
    def __init__(self, outbound: Outbound, metrics: Metrics, *, peppers: Peppers) -> None:
        self._outbound = outbound
        self._metrics = metrics
        self._peppers = peppers
        self._under_way: Counter[str] = Counter()
        """Checks by tenant."""

    async def check(self, guardrails: Sequence[GuardrailTerms], check: Check) -> Verdict:
        """A text that one guardrail blocks is blocked, even if others fail. Raises GuardrailUnavailable."""
        if not check.texts:
            return Verdict({}, is_skipped=False)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._ask(guardrail, check)) for guardrail in guardrails]
        blocked: dict[int, Finding] = {}
        failed: list[tuple[GuardrailTerms, _Failed]] = []
        for guardrail, task in zip(guardrails, tasks, strict=True):
            outcome = task.result()
            if isinstance(outcome, _Failed):
                failed.append((guardrail, outcome))
                continue
            for number, categories in outcome.items():
                blocked.setdefault(number, Finding(guardrail.name, categories))
        closed = [each for each in failed if each[0].on_failure == "closed"]
        if closed and not blocked:
            guardrail, problem = closed[0]
            raise GuardrailUnavailable(guardrail.name, str(problem), is_tenants=guardrail.tenant_id is not None)
        return Verdict(blocked, is_skipped=len(failed) > len(closed))

    async def _ask(self, guardrail: GuardrailTerms, check: Check) -> Findings | _Failed:
        began_s, outcome = time.monotonic(), "cancelled"
        label = guardrail.name if guardrail.tenant_id is None else TENANTS_OWN
        self._under_way[check.tenant_id] += 1
        try:
            found = await self._send(guardrail, check)
            outcome = "blocked" if found else "passed"
            return found
        except _Failed as error:
            outcome = "failed"
            self._metrics.guardrail_failures.add((label, error.reason, guardrail.on_failure))
            _log.warning(
                "the guardrail %s (%s) fails %s: %s", guardrail.name, guardrail.id, guardrail.on_failure, error
            )
            return error
        finally:
            self._metrics.count_guardrail_check(label, check.side, outcome, time.monotonic() - began_s)
            self._under_way[check.tenant_id] -= 1
            if not self._under_way[check.tenant_id]:
                del self._under_way[check.tenant_id]

    async def _send(self, guardrail: GuardrailTerms, check: Check) -> Findings:
        """Raises _Failed."""
        if self._under_way[check.tenant_id] > MAX_CHECKS_OF_TENANT or self._under_way.total() > MAX_CHECKS:
            raise _Failed("too many checks are under way", reason="busy")
        num_texts = len(check.texts)
        try:
            answer = await self._outbound.post(
                guardrail.url,
                question(check.texts, model=guardrail.model),
                self._headers(guardrail, check),
                total_s=guardrail.deadline_ms / 1000,
                max_answer_bytes=max_answer_bytes(num_texts),
            )
            if not 200 <= answer.status < 300:
                raise _Failed(f"it answered {answer.status}", reason="http_error")
            return read_answer(answer.body, num_texts=num_texts, categories=guardrail.categories)
        except CannotUnseal:
            raise _Failed("its owner must give its authorization again", reason="no_authorization") from None
        except OutboundFailed as error:
            raise _Failed(str(error), reason=error.reason) from error
        except BadAnswer as error:
            raise _Failed(str(error), reason="bad_answer") from error

    def _headers(self, guardrail: GuardrailTerms, check: Check) -> dict[str, str]:
        """Raises CannotUnseal."""
        headers = {
            "content-type": "application/json",
            "accept": "application/json",
            "x-tiergate-guardrail": guardrail.name,
            "x-tiergate-side": check.side,
            "x-tiergate-tenant": check.tenant_id,
            "x-tiergate-request-id": check.request_id,
        }
        authorization = guardrail.authorization(peppers=self._peppers)
        return headers if authorization is None else headers | {"authorization": authorization}
