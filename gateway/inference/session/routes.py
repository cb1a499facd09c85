"""`/v1/sessions`: the conversations that the platform stores for a tenant."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field

from gateway.clock import utc_now
from gateway.domain.principal import Principal
from gateway.http.errors import InvalidRequest
from gateway.http.pages import Page, PageDep
from gateway.inference.session.step import place_of
from gateway.inference.validate import check_session_id
from gateway.services import PrincipalDep, ServicesDep
from gateway.sessions.conversation import Conversation, Meta, describe, split_system, split_turns
from protocol.ids import new_request_id

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])


class SessionView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: str
    created_at: datetime
    changed_at: datetime
    num_turns: int
    num_messages: int
    num_left: int
    """How many messages have left the window."""
    num_bytes: int


class SessionContent(SessionView):
    messages: list[dict[str, Any]]
    summary: str | None
    """A summary of the messages that have left the window, if the tenant chose summaries."""


class BranchDraft(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str
    """The new session's id."""
    turns: Annotated[int | None, Field(ge=0)] = None
    """How many of the stored turns the new session begins with; null for all."""


def _caller(principal: PrincipalDep) -> Principal:
    principal.require("inference")
    return principal


def _checked_id(session_id: str) -> str:
    return check_session_id(session_id, param="session_id")


CallerDep = Annotated[Principal, Depends(_caller)]
IdDep = Annotated[str, Depends(_checked_id)]


@router.get("")
async def list_sessions(caller: CallerDep, services: ServicesDep, page: PageDep) -> Page[SessionView]:
    found, cursor = await services.session_store.page(caller.tenant_text, limit=page.limit, after=page.after)
    return Page(data=[SessionView.model_validate(meta) for meta in found], next=cursor)


@router.get("/{session_id}")
async def show_session(session_id: IdDep, caller: CallerDep, services: ServicesDep) -> SessionContent:
    kept = await services.session_store.get(place_of(services, caller, session_id))
    return _content(kept.meta, kept.value)


@router.post("/{session_id}/branch", status_code=201)
async def branch_session(
    session_id: IdDep, draft: BranchDraft, caller: CallerDep, services: ServicesDep
) -> SessionContent:
    """Create a session that begins with this one's turns. From then on the two are independent."""
    new_id, now = check_session_id(draft.id, param="id"), utc_now()
    kept = await services.session_store.get(place_of(services, caller, session_id))
    value = _beginning(kept.value, draft.turns)
    meta = describe(
        value, session_id=new_id, before=None, num_left=kept.meta.num_left, revision=new_request_id(now), now=now
    )
    await services.session_store.create(place_of(services, caller, new_id), meta, value)
    return _content(meta, value)


@router.delete("/{session_id}", status_code=204)
async def delete_session(session_id: IdDep, caller: CallerDep, services: ServicesDep) -> None:
    """Delete a session. 409 while one of its requests is under way."""
    await services.session_store.delete(place_of(services, caller, session_id))


def _beginning(conversation: Conversation, num_turns: int | None) -> Conversation:
    if num_turns is None:
        return conversation
    system, rest = split_system(conversation.messages)
    turns = split_turns(rest)
    if num_turns > len(turns):
        raise InvalidRequest(f"turns: the session has {len(turns)}", param="turns")
    messages = [*system, *(message for turn in turns[:num_turns] for message in turn)]
    return msgspec.structs.replace(conversation, messages=messages)


def _content(meta: Meta, value: Conversation) -> SessionContent:
    messages = msgspec.json.decode(msgspec.json.encode(value.messages))
    view = SessionView.model_validate(meta)
    return SessionContent(**view.model_dump(), messages=messages, summary=value.summary)
