from datetime import datetime, timedelta
from ipaddress import ip_network
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gateway.admin.etags import IfMatchDep, TaggedRoute, seen_version
from gateway.admin.limit_fields import KeyLimits
from gateway.admin.names import Draft, Id, ModelId, Moment, Name, Version
from gateway.clock import utc_now
from gateway.domain.keys.models import ApiKey
from gateway.domain.keys.queries import keys_of
from gateway.domain.keys.service import change_key, create_key, get_key, revoke_key, rotate_key
from gateway.domain.principal import Scope
from gateway.http.pages import Page, PageDep, fetch_page
from gateway.services import AdminDep, ServicesDep, SessionsDep, asked_tenant

router = APIRouter(prefix="/keys", tags=["keys"], route_class=TaggedRoute)

MAX_OVERLAP_S = 30 * 86_400


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise ValueError(
            f"must be a network in CIDR notation, such as 192.0.2.0/24 or 2001:db8::/32 ({error})"
        ) from None


Network = Annotated[str, Field(max_length=50), AfterValidator(_network)]
Scopes = Annotated[list[Scope], Field(min_length=1, max_length=4)]


class KeyTerms(Draft):
    allowed_models: Annotated[list[ModelId], Field(min_length=1, max_length=100)] | None = None
    """`auto`, pools, models or adapters; null: everything that the tenant may use."""
    allowed_networks: Annotated[list[Network], Field(min_length=1, max_length=100)] | None = None
    """Where the key's requests may come from; null: anywhere."""
    expires_at: Moment | None = None
    """Null: never."""
    limits: KeyLimits | None = None
    """The key's own limits, which apply beside the tenant's."""


class KeyDraft(KeyTerms):
    """Only a tenant's own administrator may leave out `tenant_id`; the key is then for that tenant."""

    tenant_id: Id | None = None
    name: Name
    scopes: Scopes = Field(default=["inference"])
    """`inference`; `usage` reads the tenant's usage, spending and dashboard; `tenant-admin`; `platform-admin`."""


class KeyChange(KeyTerms):
    """Fields that are not sent keep their values."""

    version: Version | None = None
    name: Name = "-"
    scopes: Scopes = Field(default=["inference"])


class Rotation(Draft):
    overlap_s: Annotated[int, Field(ge=0, le=MAX_OVERLAP_S)] = 3600
    """How long the old key keeps working beside the new one."""


class KeyView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: UUID
    tenant_id: UUID
    name: str
    prefix: str
    scopes: list[Scope]
    allowed_models: list[str] | None
    allowed_networks: list[str] | None
    limits: dict[str, int] | None
    version: int
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    """Up to 15 s behind."""
    previous_until: datetime | None
    """Until when the key before the last rotation works."""


class NewKeyView(KeyView):
    key: str
    """The key itself, shown only this once."""


@router.post("", status_code=201)
async def post_key(draft: KeyDraft, admin: AdminDep, services: ServicesDep) -> NewKeyView:
    key, secret = await create_key(
        services.sessions,
        admin,
        tenant_id=draft.tenant_id,
        name=draft.name,
        scopes=draft.scopes,
        terms=_fields(draft, but={"tenant_id", "name", "scopes"}),
        pepper=_pepper(services),
        now=utc_now(),
    )
    return NewKeyView(**KeyView.model_validate(key).model_dump(), key=secret)


@router.get("")
async def list_keys(
    admin: AdminDep,
    sessions: SessionsDep,
    page: PageDep,
    tenant_id: UUID | None = None,
    name: Annotated[str | None, Query(max_length=200)] = None,
    is_live: bool = False,
) -> Page[KeyView]:
    """List keys; with `is_live=true`, without the revoked ones."""
    query = keys_of(asked_tenant(admin, tenant_id))
    if name is not None:
        query = query.where(ApiKey.name == name)
    if is_live:
        query = query.where(ApiKey.revoked_at.is_(None))
    async with sessions() as session:
        return await fetch_page(session, query, ApiKey.id, page, KeyView.model_validate)


@router.get("/{key_id}")
async def show_key(key_id: UUID, admin: AdminDep, sessions: SessionsDep) -> KeyView:
    async with sessions() as session:
        return KeyView.model_validate(await get_key(session, admin, key_id))


@router.patch("/{key_id}")
async def patch_key(
    key_id: UUID,
    change: KeyChange,
    admin: AdminDep,
    services: ServicesDep,
    if_match: IfMatchDep = None,
) -> KeyView:
    version = seen_version(if_match, change.version)
    key = await change_key(
        services.sessions, admin, key_id, _fields(change, but={"version"}), version=version, now=utc_now()
    )
    await services.end_key(key.prefix, key.previous_prefix)
    return KeyView.model_validate(key)


@router.post("/{key_id}/rotate")
async def post_rotation(key_id: UUID, rotation: Rotation, admin: AdminDep, services: ServicesDep) -> NewKeyView:
    """Issue a new key in place of this one, with the same id, usage, limits and rights.

    The old key works for `overlap_s` more seconds. Another rotation within that time ends the oldest key at once.
    """
    overlap = timedelta(seconds=rotation.overlap_s)
    key, secret, prefixes = await rotate_key(
        services.sessions, admin, key_id, overlap=overlap, pepper=_pepper(services), now=utc_now()
    )
    await services.end_key(*prefixes)
    return NewKeyView(**KeyView.model_validate(key).model_dump(), key=secret)


@router.delete("/{key_id}", status_code=204)
async def delete_key(key_id: UUID, admin: AdminDep, services: ServicesDep, if_match: IfMatchDep = None) -> None:
    """Revoke a key. Every gateway refuses it within a second, or two while Redis is away.

    409 for the last platform-admin key that works from every address and never expires: keys that expire, have
    `allowed_networks` or belong to a suspended tenant are no substitute.
    """
    key = await revoke_key(services.sessions, admin, key_id, version=if_match, now=utc_now())
    await services.end_key(key.prefix, key.previous_prefix)


def _fields(sent: KeyTerms, *, but: set[str] | None = None) -> dict[str, Any]:
    return sent.model_dump(exclude=but, exclude_unset=True)


def _pepper(services: ServicesDep) -> str:
    return services.settings.peppers.current
