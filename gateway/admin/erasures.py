"""`/admin/v1/erasures`: remove a tenant, or one of its end users, from every store, and prove the removal."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter
from pydantic import BaseModel, Field

from gateway.admin.names import Draft, Id, UserId
from gateway.clock import utc_now
from gateway.domain.erasures.models import Erasure
from gateway.domain.erasures.service import begin_erasure, erasures_of, get_erasure
from gateway.erasure.report import is_as_sealed
from gateway.erasure.search import look_again, search_words
from gateway.erasure.subject import late_subject
from gateway.http.errors import Conflict, InvalidRequest
from gateway.http.pages import Page, PageDep, fetch_page
from gateway.services import AdminDep, PlatformDep, ServicesDep, SessionsDep, visible_tenant

router = APIRouter(prefix="/erasures", tags=["erasures"])
Word = Annotated[str, Field(min_length=3, max_length=512)]


class ErasureDraft(Draft):
    tenant_id: Id
    user_id: UserId | None = None
    """The end user to erase (`user` of requests). Null erases the whole tenant, which cannot be undone."""


class ErasureStep(BaseModel):
    name: str
    finished_at: datetime
    counts: dict[str, int]
    """How much was removed or changed, by kind. The step `proof` reports what was found afterwards: nothing."""


class ErasureView(BaseModel):
    id: UUID
    tenant_id: UUID
    is_of_user: bool
    status: Literal["running", "finished"]
    waits_for: str | None
    """The unavailable store, or the work under way, that the erasure waits for. It resumes by itself."""
    created_at: datetime
    finished_at: datetime | None
    steps: list[ErasureStep]
    """The finished steps."""
    sha256: str | None
    """SHA-256 of a finished erasure's report, sealed under the platform's pepper. The audit log has it, too."""


class VerificationDraft(Draft):
    user_id: UserId | None = None
    """The end user who was erased; the caller must name the user, since the gateway no longer knows the name."""
    words: Annotated[tuple[Word, ...], Field(max_length=20, strict=False)] = ()
    """Words to search for in every text of every store. The search may take long."""


class VerificationView(BaseModel):
    is_clean: bool
    """The report matches its seal, no searched store was away, and nothing was found."""
    is_report_sealed: bool
    found: dict[str, int]
    """By store, how much still names the tenant or the end user; and by place, how many rows, keys or files hold one of
    the words."""
    away: dict[str, str]
    """Stores that could not be searched, and why."""


@router.post("", status_code=202)
async def post_erasure(draft: ErasureDraft, admin: AdminDep, services: ServicesDep) -> ErasureView:
    """Erase a tenant or, with `user_id`, one of its end users from every store.

    Their requests are refused from now on. The rest is done in the background and resumes after a crash. Only platform
    administrators may erase a tenant. 409 while another erasure of the same tenant or end user is under way.
    """
    erasure = await begin_erasure(
        services.sessions, admin, tenant_id=draft.tenant_id, user_id=draft.user_id, now=utc_now()
    )
    await services.reload()
    return _view(erasure)


@router.get("")
async def list_erasures(admin: AdminDep, sessions: SessionsDep, page: PageDep) -> Page[ErasureView]:
    """List erasures. Tenant administrators see those of their tenant's end users."""
    async with sessions() as session:
        return await fetch_page(session, erasures_of(visible_tenant(admin)), Erasure.id, page, _view)


@router.get("/{erasure_id}")
async def show_erasure(erasure_id: UUID, admin: AdminDep, sessions: SessionsDep) -> ErasureView:
    return _view(await get_erasure(sessions, admin, erasure_id))


@router.post("/{erasure_id}/verification")
async def verify_erasure(
    erasure_id: UUID, draft: VerificationDraft, admin: PlatformDep, services: ServicesDep
) -> VerificationView:
    """Search every store again for traces after an erasure; platform administrators only.

    For an end user send the `user_id` again, or `words` to search for. 409 while the erasure is under way.
    """
    erasure = await get_erasure(services.sessions, admin, erasure_id)
    if erasure.finished_at is None:
        raise Conflict(
            f"this erasure is under way, and waits for {erasure.waits_for or 'nothing'}; verify it at its end"
        )
    if erasure.is_of_user and draft.user_id is None and not draft.words:
        message = "user_id: name the end user, whose name is known here no more, or give words to search for"
        raise InvalidRequest(message, param="user_id")
    stores = services.erasure_stores
    found: dict[str, int] = {}
    away: dict[str, str] = {}
    if not erasure.is_of_user or draft.user_id is not None:
        found, away = await look_again(stores, late_subject(erasure, user=draft.user_id))
    if draft.words:
        in_texts, also_away = await search_words(stores, draft.words)
        found, away = found | in_texts, away | also_away
    is_sealed = is_as_sealed(erasure, peppers=stores.peppers)
    is_clean = is_sealed and not away and not any(found.values())
    return VerificationView(is_clean=is_clean, is_report_sealed=is_sealed, found=found, away=away)


def _view(erasure: Erasure) -> ErasureView:
    steps: list[dict[str, Any]] = erasure.steps
    return ErasureView(
        id=erasure.id,
        tenant_id=erasure.tenant_id,
        is_of_user=erasure.is_of_user,
        status="running" if erasure.finished_at is None else "finished",
        waits_for=erasure.waits_for,
        created_at=erasure.created_at,
        finished_at=erasure.finished_at,
        steps=[ErasureStep(**step) for step in steps],
        sha256=erasure.sha256,
    )
