"""`GET /v1/usage` (the key's own tenant) and `GET /admin/v1/usage` (for a platform administrator, all tenants)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel

from gateway.clock import utc_now
from gateway.http.pages import MAX_LIMIT
from gateway.metering.statements import GROUPINGS, check_grouping
from gateway.metering.windows import Window, parse_window
from gateway.services import AdminDep, ServicesDep, UsageReaderDep, visible_tenant

router = APIRouter(tags=["usage"])
admin_router = APIRouter(prefix="/usage", tags=["usage"])

_TIME = "ISO 8601 (UTC without an offset) or Unix seconds"


class UsageAnswer(BaseModel):
    """Rows use the field names of the usage event.

    A grouped row has the group's field (for a time bucket its start, as `timestamp`), `requests`, `errors`, the sums of
    tokens, cost and compute, and the means of `ttft_ms` and `total_latency_ms`. With `percentiles` it also has `_p50`,
    `_p95` and `_p99` of `ttft_ms`, `tpot_ms` (the time per token after the first) and `total_latency_ms`.
    """

    data: Sequence[dict[str, Any]]
    next: str | None


class UsageQuestion(BaseModel):
    window: Window
    group_by: str
    limit: int
    after: str | None
    percentiles: bool


def usage_question(
    start: Annotated[str | None, Query(alias="from", description=f"{_TIME}; default: 24 hours before `to`")] = None,
    end: Annotated[str | None, Query(alias="to", description=f"{_TIME}; exclusive; default: now")] = None,
    group_by: Annotated[str, Query(description=f"one of {', '.join(GROUPINGS)}")] = "day",
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 100,
    after: Annotated[str | None, Query(max_length=4000)] = None,
    percentiles: Annotated[bool, Query(description="add latency percentiles of each group; slower")] = False,
) -> UsageQuestion:
    window = parse_window(start, end, now=utc_now())
    return UsageQuestion(
        window=window, group_by=check_grouping(group_by), limit=limit, after=after, percentiles=percentiles
    )


class RefusalRow(BaseModel):
    timestamp: datetime
    tenant_id: str
    key_id: str
    limit: str
    status: int
    refusals: int


class RefusalsAnswer(BaseModel):
    data: Sequence[RefusalRow]
    next: str | None


@dataclass(frozen=True)
class RefusalsQuestion:
    window: Window
    limit: int
    after: str | None


def refusals_question(
    start: Annotated[str | None, Query(alias="from", description=f"{_TIME}; default: 24 hours before `to`")] = None,
    end: Annotated[str | None, Query(alias="to", description=f"{_TIME}; exclusive; default: now")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 100,
    after: Annotated[str | None, Query(max_length=4000)] = None,
) -> RefusalsQuestion:
    return RefusalsQuestion(parse_window(start, end, now=utc_now()), limit, after)


RefusalsDep = Annotated[RefusalsQuestion, Depends(refusals_question)]
QuestionDep = Annotated[UsageQuestion, Depends(usage_question)]


@router.get("/v1/usage")
async def own_usage(principal: UsageReaderDep, services: ServicesDep, question: QuestionDep) -> UsageAnswer:
    return await _answer(services, question, tenant_id=principal.tenant_id)


@admin_router.get("")
async def usage(
    admin: AdminDep, services: ServicesDep, question: QuestionDep, tenant_id: UUID | None = None
) -> UsageAnswer:
    if tenant_id is not None:
        admin.require_tenant(tenant_id)
    return await _answer(services, question, tenant_id=tenant_id or visible_tenant(admin))


@admin_router.get("/refusals")
async def refusals(
    admin: AdminDep,
    services: ServicesDep,
    question: RefusalsDep,
    bucket: Literal["minute", "hour", "day"] = "hour",
    tenant_id: UUID | None = None,
) -> RefusalsAnswer:
    """Count the requests that were refused before admission, which have no usage event.

    They are counted by time, tenant, key, limit (the error's `code`) and status. Refusals without a known key have an
    empty `tenant_id` and `key_id`, and only platform administrators see them.
    """
    if tenant_id is not None:
        admin.require_tenant(tenant_id)
    visible = tenant_id or visible_tenant(admin)
    page = await services.usage.refusals(
        question.window,
        tenant_id=None if visible is None else str(visible),
        bucket=bucket,
        limit=question.limit,
        after=question.after,
    )
    return RefusalsAnswer(data=[RefusalRow(**row) for row in page.rows], next=page.next)


async def _answer(services: ServicesDep, question: UsageQuestion, *, tenant_id: UUID | None) -> UsageAnswer:
    page = await services.usage.usage(
        question.window,
        tenant_id=None if tenant_id is None else str(tenant_id),
        group_by=question.group_by,
        limit=question.limit,
        after=question.after,
        has_percentiles=question.percentiles,
    )
    return UsageAnswer(data=page.rows, next=page.next)
