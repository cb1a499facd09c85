"""`GET /v1/organization/usage/completions` and `/v1/organization/costs`, compatible with OpenAI's admin clients."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel

from gateway.billing.organization import BUCKETS_S, COMPLETIONS_GROUPS, COSTS_GROUPS, Question, completions, costs
from gateway.clock import utc_now
from gateway.http.errors import InvalidRequest
from gateway.metering.windows import Window
from gateway.services import ServicesDep, UsageReaderDep, visible_tenant

router = APIRouter(prefix="/v1/organization", tags=["usage"])
_encode = msgspec.json.Encoder(decimal_format="number").encode
_LIMITS = {"1m": (60, 1440), "1h": (24, 168), "1d": (7, 31)}
"""Bucket width -> how many buckets by default, and at most."""
_MAX_COST_DAYS = 180
_FILTERS = {
    "project_ids": "project_id",
    "user_ids": "user_id",
    "api_key_ids": "api_key_id",
    "models": "model",
    "line_items": "line_item",
}
UnixTime = Annotated[int, Query(ge=0, le=7_000_000_000)]
PageOf = Annotated[str | None, Query(max_length=200)]


class Result(BaseModel):
    object: str
    project_id: str | None
    """The tenant's id."""
    user_id: str | None
    api_key_id: str | None


class CompletionsResult(Result):
    num_model_requests: int
    input_tokens: int
    """Includes cached tokens."""
    input_cached_tokens: int
    output_tokens: int
    model: str | None
    service_tier: str | None
    batch: None


class Amount(BaseModel):
    value: float
    """Dollars. The JSON number has all decimals of the nano-dollars."""
    currency: Literal["usd"]


class CostsResult(Result):
    amount: Amount
    line_item: str | None
    """Model and kind of token, as on an invoice."""


class Bucket(BaseModel):
    object: Literal["bucket"]
    start_time: int
    end_time: int


class CompletionsBucket(Bucket):
    results: list[CompletionsResult]


class CostsBucket(Bucket):
    results: list[CostsResult]


class _Page(BaseModel):
    object: Literal["page"]
    has_more: bool
    next_page: str | None


class CompletionsPage(_Page):
    data: list[CompletionsBucket]


class CostsPage(_Page):
    data: list[CostsBucket]


class _Asked(BaseModel):
    """The query's lists, which are sent as `name` or `name[]`, repeated or separated by commas."""

    groups: tuple[str, ...]
    filters: dict[str, list[str]]


def _asked(request: Request) -> _Asked:
    filters = {group: values for name, group in _FILTERS.items() if (values := _values(request, name))}
    return _Asked(groups=tuple(dict.fromkeys(_values(request, "group_by"))), filters=filters)


AskedDep = Annotated[_Asked, Depends(_asked)]


def _values(request: Request, name: str) -> list[str]:
    sent = [*request.query_params.getlist(name), *request.query_params.getlist(f"{name}[]")]
    return [part for value in sent for part in value.split(",") if part]


@router.get("/usage/completions", response_model=CompletionsPage)
async def usage_completions(
    admin: UsageReaderDep,
    services: ServicesDep,
    asked: AskedDep,
    start_time: UnixTime,
    end_time: UnixTime | None = None,
    bucket_width: Literal["1m", "1h", "1d"] = "1d",
    limit: Annotated[int | None, Query(ge=1)] = None,
    page: PageOf = None,
) -> Response:
    """Usage in time buckets, in the format of OpenAI's administration API.

    `group_by` takes project_id (the tenant), user_id, api_key_id, model and service_tier; the filters are project_ids,
    user_ids, api_key_ids and models. Needs the scope `usage` or an admin scope; only platform administrators see other
    tenants' usage.
    """
    default, most = _LIMITS[bucket_width]
    question = _question(
        asked,
        visible_tenant(admin),
        window=_window(start_time, end_time),
        bucket_s=BUCKETS_S[bucket_width],
        limit=_limit(limit, default, most),
        allowed=COMPLETIONS_GROUPS,
    )
    return _json(await completions(services.usage, question, after=page))


@router.get("/costs", response_model=CostsPage)
async def organization_costs(
    admin: UsageReaderDep,
    services: ServicesDep,
    asked: AskedDep,
    start_time: UnixTime,
    end_time: UnixTime | None = None,
    bucket_width: Literal["1d"] = "1d",
    limit: Annotated[int | None, Query(ge=1)] = None,
    page: PageOf = None,
) -> Response:
    """Costs by day, in the format of OpenAI's administration API.

    `group_by` takes project_id (the tenant), user_id, api_key_id and line_item; the filters are project_ids,
    api_key_ids and line_items. Needs the scope `usage` or an admin scope; only platform administrators see other
    tenants' costs.
    """
    question = _question(
        asked,
        visible_tenant(admin),
        window=_window(start_time, end_time),
        bucket_s=BUCKETS_S[bucket_width],
        limit=_limit(limit, 7, _MAX_COST_DAYS),
        allowed=COSTS_GROUPS,
    )
    return _json(await costs(services.usage, question, after=page))


def _question(
    asked: _Asked, tenant_id: UUID | None, *, window: Window, bucket_s: int, limit: int, allowed: Sequence[str]
) -> Question:
    for group in (*asked.groups, *asked.filters):
        if group not in allowed:
            raise InvalidRequest(f"{group[:40]!r} is not one of {', '.join(allowed)}", param="group_by")
    return Question(
        window=window,
        bucket_s=bucket_s,
        limit=limit,
        groups=asked.groups,
        filters=asked.filters,
        tenant_id=None if tenant_id is None else str(tenant_id),
    )


def _window(start_s: int, end_s: int | None) -> Window:
    end = utc_now() + timedelta(seconds=1) if end_s is None else datetime.fromtimestamp(end_s, UTC)
    start = datetime.fromtimestamp(start_s, UTC)
    if start >= end:
        raise InvalidRequest("start_time must be before end_time", param="start_time")
    return Window(start, end)


def _limit(limit: int | None, default: int, most: int) -> int:
    if limit is not None and limit > most:
        raise InvalidRequest(f"limit: at most {most} buckets of this width", param="limit")
    return limit or default


def _json(answer: Mapping[str, Any]) -> Response:
    return Response(_encode(answer), media_type="application/json")
