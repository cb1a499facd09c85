import unicodedata
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from gateway.admin.etags import IfMatchDep, TaggedRoute, seen_version
from gateway.admin.names import Draft, Id, Version
from gateway.clock import utc_now
from gateway.domain.principal import Principal
from gateway.domain.tools.hosts import check_host
from gateway.domain.tools.models import ServerTool
from gateway.domain.tools.schemas import check_schema
from gateway.domain.tools.service import (
    Credential,
    change_tool,
    create_tool,
    delete_tool,
    tools_visible_to,
)
from gateway.http.errors import NotFound
from gateway.http.pages import Page, PageDep, fetch_page
from gateway.services import AdminDep, Services, ServicesDep, SessionsDep, asked_tenant

router = APIRouter(prefix="/tools", tags=["tools"], route_class=TaggedRoute)

MAX_TIMEOUT_S = 60
MAX_RESULT_BYTES = 256 * 1024
_OUR_HEADERS = frozenset(
    {"accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host"}
    | {"keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "user-agent"}
)
Json = dict[str, Any]


def _not_ours(header: str) -> str:
    if header.lower() in _OUR_HEADERS or header.lower().startswith(("proxy-", "x-tiergate-")):
        raise ValueError("this header is set by the platform; choose another")
    return header


def sendable(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if not text.isascii() or not text.isprintable() or text != text.strip():
        raise ValueError("must be printable ASCII, without spaces around it")
    return secret


class CredentialDraft(Draft):
    """Sent as the header `header: secret` with every call. The secret is stored encrypted and never shown again."""

    header: Annotated[
        str, Field(max_length=100, pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"), AfterValidator(_not_ours)
    ] = "Authorization"
    secret: Annotated[SecretStr, Field(min_length=1, max_length=4096), AfterValidator(sendable)]


def _readable(text: str) -> str:
    for char in text:
        if unicodedata.category(char) in ("Cc", "Cs") and char not in "\n\t":
            raise ValueError(f"must not hold the character U+{ord(char):04X}")
    return text


ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Description = Annotated[str, Field(min_length=1, max_length=4000), AfterValidator(_readable)]
Timeout = Annotated[float, Field(ge=0.1, le=MAX_TIMEOUT_S)]
ResultBytes = Annotated[int, Field(ge=1, le=MAX_RESULT_BYTES)]
Rounds = Annotated[int, Field(ge=1, le=32)]


class ToolDraft(Draft):
    """Without `tenant_id` a platform administrator creates a tool for everybody, a tenant's administrator one for that
    tenant."""

    tenant_id: Id | None = None
    name: ToolName
    description: Description
    """Tells the model what the tool does and when to call it."""
    parameters: Json
    """The JSON schema of the tool's arguments, which are an object."""
    url: Annotated[str, Field(max_length=2000)]
    """The URL that receives the arguments as a POST and answers with JSON."""
    credential: CredentialDraft | None = None
    timeout_s: Timeout = 10.0
    max_result_bytes: ResultBytes = 16 * 1024
    max_rounds: Rounds = 4
    """In how many rounds of one request the model may call the tool."""
    is_enabled: bool = True


class ToolChange(Draft):
    """Fields that are not sent keep their values. A null `credential` removes the credential."""

    description: Description = "-"
    parameters: Json = Field(default_factory=dict)
    url: Annotated[str, Field(max_length=2000)] = ""
    """A URL at another server needs the credential again."""
    version: Version | None = None
    credential: CredentialDraft | None = None
    timeout_s: Timeout = 10.0
    max_result_bytes: ResultBytes = 1
    max_rounds: Rounds = 1
    is_enabled: bool = True


class ToolView(BaseModel):
    """Only platform administrators see `url` and `credential_header` of a tool for everybody; for others they are
    null."""

    model_config = ConfigDict(from_attributes=True)

    id: UUID
    tenant_id: UUID | None
    name: str
    description: str
    parameters: Json
    url: str | None
    credential_header: str | None
    timeout_s: float
    max_result_bytes: int
    max_rounds: int
    is_enabled: bool
    created_at: datetime
    changed_at: datetime
    version: int


@router.post("", status_code=201)
async def post_tool(draft: ToolDraft, admin: AdminDep, services: ServicesDep) -> ToolView:
    fields = draft.model_dump(exclude={"tenant_id", "credential"})
    _check(services, fields)
    tool = await create_tool(
        services.sessions,
        admin,
        tenant_id=draft.tenant_id,
        fields=fields,
        credential=_pair(draft.credential),
        pepper=_pepper(services),
        now=utc_now(),
    )
    services.tool_book.forget()
    return _view(tool, admin)


@router.get("")
async def list_tools(
    admin: AdminDep,
    sessions: SessionsDep,
    page: PageDep,
    tenant_id: UUID | None = None,
    name: Annotated[str | None, Query(max_length=200)] = None,
) -> Page[ToolView]:
    """List the tools that a tenant may use: its own and those for everybody.

    A platform administrator who names no `tenant_id` gets all tools.
    """
    query = tools_visible_to(asked_tenant(admin, tenant_id))
    if name is not None:
        query = query.where(ServerTool.name == name)
    async with sessions() as session:
        return await fetch_page(session, query, ServerTool.id, page, lambda tool: _view(tool, admin))


@router.get("/{tool_id}")
async def get_tool(tool_id: UUID, admin: AdminDep, sessions: SessionsDep) -> ToolView:
    async with sessions() as session:
        tool = await session.scalar(tools_visible_to(asked_tenant(admin, None)).where(ServerTool.id == tool_id))
    if tool is None:
        raise NotFound("there is no such tool")
    return _view(tool, admin)


@router.patch("/{tool_id}")
async def patch_tool(
    tool_id: UUID,
    change: ToolChange,
    admin: AdminDep,
    services: ServicesDep,
    if_match: IfMatchDep = None,
) -> ToolView:
    changes = change.model_dump(exclude_unset=True, exclude={"credential", "version"})
    _check(services, changes)
    tool = await change_tool(
        services.sessions,
        admin,
        tool_id,
        changes,
        credential=_pair(change.credential),
        has_credential="credential" in change.model_fields_set,
        version=seen_version(if_match, change.version),
        pepper=_pepper(services),
        now=utc_now(),
    )
    services.tool_book.forget()
    return _view(tool, admin)


@router.delete("/{tool_id}", status_code=204)
async def remove_tool(tool_id: UUID, admin: AdminDep, services: ServicesDep, if_match: IfMatchDep = None) -> None:
    """Delete a tool. Requests under way may call it until they end."""
    await delete_tool(services.sessions, admin, tool_id, version=if_match, now=utc_now())
    services.tool_book.forget()


def _check(services: Services, fields: Json) -> None:
    """Check what types cannot express. Raises InvalidRequest."""
    if "parameters" in fields:
        check_schema(fields["parameters"], param="parameters")
    if "url" in fields:
        services.tool_outbound.check_url(fields["url"])
        check_host(fields["url"], services.settings.tool_hosts)


def _pair(draft: CredentialDraft | None) -> Credential | None:
    return None if draft is None else (draft.header, draft.secret.get_secret_value())


def _pepper(services: Services) -> str:
    return services.settings.peppers.current


def _view(tool: ServerTool, admin: Principal) -> ToolView:
    view = ToolView.model_validate(tool)
    is_hidden = tool.tenant_id is None and not admin.is_platform_admin
    return view.model_copy(update={"url": None, "credential_header": None}) if is_hidden else view
