"""`/admin/v1/tenants/{tenant_id}/cache`: which answers of a tenant are cached (docs/caching.md)."""

from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.etags import IfMatchDep, TaggedRoute, seen_version
from gateway.admin.names import Draft, Version
from gateway.clock import utc_now
from gateway.domain.answer_caching.service import change_cache_policy, read_cache_policy, record_purge
from gateway.domain.answer_caching.terms import MAX_TTL_S
from gateway.http.errors import InvalidRequest, Unavailable
from gateway.redis_client import AWAY
from gateway.services import AdminDep, ServicesDep, SessionsDep

router = APIRouter(prefix="/tenants/{tenant_id}/cache", tags=["tenants"], route_class=TaggedRoute)


class CachePolicyChange(Draft):
    """Fields that are not sent keep their values."""

    mode: Literal["off", "exact", "semantic"] = "off"
    """exact: an identical request gets the cached answer. semantic: so does one whose last message means the same."""
    is_default: bool = False
    """True: requests use the cache unless they send `X-Tiergate-Cache: off`. False: only those that send `on` do."""
    ttl_s: Annotated[int, Field(ge=1, le=MAX_TTL_S)] = 3600
    min_similarity: Annotated[float, Field(ge=0.5, le=1)] = 0.95
    """The cosine similarity from which on two messages count as meaning the same."""
    takes_sampled: bool = False
    """Requests without `temperature: 0` are cached, too."""
    version: Version | None = None


class CachePolicyView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    mode: str
    is_default: bool
    ttl_s: int
    min_similarity: float
    takes_sampled: bool
    version: int
    """0 until the policy is first changed."""


@router.get("")
async def show_cache_policy(tenant_id: UUID, admin: AdminDep, sessions: SessionsDep) -> CachePolicyView:
    return CachePolicyView.model_validate(await read_cache_policy(sessions, admin, tenant_id))


@router.patch("")
async def patch_cache_policy(
    tenant_id: UUID, change: CachePolicyChange, admin: AdminDep, services: ServicesDep, if_match: IfMatchDep = None
) -> CachePolicyView:
    if change.mode == "semantic" and services.settings.cache_embedding_model is None:
        raise InvalidRequest(
            "mode: nothing compares messages here; the operator sets TIERGATE_CACHE_EMBEDDING_MODEL", param="mode"
        )
    terms = await change_cache_policy(
        services.sessions,
        admin,
        tenant_id,
        change.model_dump(exclude_unset=True, exclude={"version"}),
        version=seen_version(if_match, change.version),
        now=utc_now(),
    )
    await services.reload()
    return CachePolicyView.model_validate(terms)


@router.delete("", status_code=204)
async def purge_cache(tenant_id: UUID, admin: AdminDep, services: ServicesDep) -> None:
    """Remove all of the tenant's answers from the cache; the policy stays. 503 while Redis is away."""
    await read_cache_policy(services.sessions, admin, tenant_id)
    try:
        num_answers = await services.answer_cache.purge(str(tenant_id))
    except AWAY as error:
        raise Unavailable("Redis, which holds the answers, is away; try again", retry_after_s=1) from error
    await record_purge(services.sessions, admin, tenant_id, num_answers=num_answers, now=utc_now())
