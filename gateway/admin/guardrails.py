from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from gateway.admin.etags import IfMatchDep, TaggedRoute, seen_version
from gateway.admin.names import Draft, Id, ModelId, Name, Version
from gateway.admin.tools import sendable
from gateway.clock import utc_now
from gateway.domain.guardrails.models import Guardrail
from gateway.domain.guardrails.service import (
    change_guardrail,
    create_guardrail,
    delete_guardrail,
    guardrails_visible_to,
)
from gateway.domain.guardrails.terms import Checks, OnFailure
from gateway.domain.principal import Principal
from gateway.http.errors import NotFound
from gateway.http.pages import Page, PageDep, fetch_page
from gateway.services import AdminDep, Services, ServicesDep, SessionsDep, asked_tenant

router = APIRouter(prefix="/guardrails", tags=["guardrails"], route_class=TaggedRoute)

MAX_DEADLINE_MS = 30_000
MAX_WINDOW_CHARS = 100_000

GuardrailName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Url = Annotated[str, Field(max_length=2000)]
Authorization = Annotated[SecretStr, Field(min_length=1, max_length=4096), AfterValidator(sendable)]
"""The header's value, such as `Bearer sk-...`: stored sealed, and never shown again."""
Categories = Annotated[list[Name], Field(max_length=64)]
Deadline = Annotated[int, Field(ge=50, le=MAX_DEADLINE_MS)]
WindowChars = Annotated[int, Field(ge=1, le=MAX_WINDOW_CHARS)]


class GuardrailDraft(Draft):
    """Without `tenant_id` a platform administrator creates a guardrail for everybody's requests, a tenant's
    administrator one for that tenant's."""

    tenant_id: Id | None = None
    name: GuardrailName
    """Refusals contain this name."""
    url: Url
    """The URL that receives `{"model", "input": [...]}` and answers as OpenAI's `/v1/moderations` does."""
    authorization: Authorization | None = None
    model: ModelId | None = None
    """Sent to the hook as `model`."""
    checks: Checks = "both"
    categories: Categories = Field(default_factory=list)
    """The categories that block. Empty: everything that the hook flags is blocked."""
    deadline_ms: Deadline = 2000
    on_failure: OnFailure = "closed"
    """`closed`: text that cannot be checked is refused with 503. `open`: it passes, and a response header says so."""
    window_chars: WindowChars = 500
    """How many characters of a stream are held back until they have been checked."""
    is_enabled: bool = True


class GuardrailChange(Draft):
    """Fields that are not sent keep their values. A null `authorization` removes the authorization."""

    url: Url = ""
    """A URL at another server needs the authorization again."""
    authorization: Authorization | None = None
    model: ModelId | None = None
    checks: Checks = "both"
    categories: Categories = Field(default_factory=list)
    deadline_ms: Deadline = 2000
    on_failure: OnFailure = "closed"
    window_chars: WindowChars = 500
    is_enabled: bool = True
    version: Version | None = None


class GuardrailView(BaseModel):
    """Only platform administrators see `url` and `has_authorization` of a guardrail for everybody; for others they are
    null."""

    model_config = ConfigDict(from_attributes=True)

    id: UUID
    tenant_id: UUID | None
    name: str
    url: str | None
    has_authorization: bool | None = None
    model: str | None
    checks: Checks
    categories: list[str]
    deadline_ms: int
    on_failure: OnFailure
    window_chars: int
    is_enabled: bool
    created_at: datetime
    changed_at: datetime
    version: int


@router.post("", status_code=201)
async def post_guardrail(draft: GuardrailDraft, admin: AdminDep, services: ServicesDep) -> GuardrailView:
    services.outbound.check_url(draft.url)
    guardrail = await create_guardrail(
        services.sessions,
        admin,
        tenant_id=draft.tenant_id,
        fields=draft.model_dump(exclude={"tenant_id", "authorization"}),
        authorization=_plain(draft.authorization),
        pepper=_pepper(services),
        now=utc_now(),
    )
    await services.reload()
    return _view(guardrail, admin)


@router.get("")
async def list_guardrails(
    admin: AdminDep,
    sessions: SessionsDep,
    page: PageDep,
    tenant_id: UUID | None = None,
    name: Annotated[str | None, Query(max_length=200)] = None,
) -> Page[GuardrailView]:
    """List the guardrails that check a tenant's requests: its own and those for everybody.

    A platform administrator who names no `tenant_id` gets all guardrails.
    """
    query = guardrails_visible_to(asked_tenant(admin, tenant_id))
    if name is not None:
        query = query.where(Guardrail.name == name)
    async with sessions() as session:
        return await fetch_page(session, query, Guardrail.id, page, lambda guardrail: _view(guardrail, admin))


@router.get("/{guardrail_id}")
async def get_guardrail(guardrail_id: UUID, admin: AdminDep, sessions: SessionsDep) -> GuardrailView:
    visible = guardrails_visible_to(asked_tenant(admin, None))
    async with sessions() as session:
        guardrail = await session.scalar(visible.where(Guardrail.id == guardrail_id))
    if guardrail is None:
        raise NotFound("there is no such guardrail")
    return _view(guardrail, admin)


@router.patch("/{guardrail_id}")
async def patch_guardrail(
    guardrail_id: UUID,
    change: GuardrailChange,
    admin: AdminDep,
    services: ServicesDep,
    if_match: IfMatchDep = None,
) -> GuardrailView:
    changes = change.model_dump(exclude_unset=True, exclude={"authorization", "version"})
    if "url" in changes:
        services.outbound.check_url(changes["url"])
    guardrail = await change_guardrail(
        services.sessions,
        admin,
        guardrail_id,
        changes,
        authorization=_plain(change.authorization),
        has_authorization="authorization" in change.model_fields_set,
        version=seen_version(if_match, change.version),
        pepper=_pepper(services),
        now=utc_now(),
    )
    await services.reload()
    return _view(guardrail, admin)


@router.delete("/{guardrail_id}", status_code=204)
async def remove_guardrail(
    guardrail_id: UUID, admin: AdminDep, services: ServicesDep, if_match: IfMatchDep = None
) -> None:
    """Delete a guardrail. Requests under way are still checked by it until they end."""
    await delete_guardrail(services.sessions, admin, guardrail_id, version=if_match, now=utc_now())
    await services.reload()


def _plain(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def _pepper(services: Services) -> str:
    return services.settings.peppers.current


def _view(guardrail: Guardrail, admin: Principal) -> GuardrailView:
    view = GuardrailView.model_validate(guardrail)
    if guardrail.tenant_id is None and not admin.is_platform_admin:
        return view.model_copy(update={"url": None})
    return view.model_copy(update={"has_authorization": guardrail.sealed_authorization is not None})
