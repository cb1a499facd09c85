import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect, given, tenant_id
from tiergate.admin.output import show_row, show_rows
from tiergate.failure import Failure

if TYPE_CHECKING:
    from tiergate.admin.client import AdminClient

app = typer.Typer(name="tool", help="Server tools, which the platform itself calls when a model asks for them.")

Tool = Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name or id.")]
Owner = Annotated[
    str | None, typer.Option("--tenant", help="The owner, a tenant's name or id; without it: everybody's.")
]
Description = Annotated[str, typer.Option(help="Tells the model what the tool does and when to call it.")]
Parameters = Annotated[str, typer.Option(metavar="FILE|JSON", help="The JSON schema of the tool's arguments.")]
Url = Annotated[str, typer.Option(help="The URL that receives the arguments as a POST and answers with JSON.")]
Header = Annotated[str | None, typer.Option(help="The header that carries the credential; default: Authorization.")]
SecretEnv = Annotated[
    str | None, typer.Option(metavar="NAME", help="The environment variable that holds the credential's value.")
]
Timeout = Annotated[float | None, typer.Option(help="The seconds that a call may take; default: 10.")]
ResultBytes = Annotated[int | None, typer.Option(help="The most bytes of a result; default: 16384.")]
Rounds = Annotated[int | None, typer.Option(help="In how many rounds of a request the tool may be called; default: 4.")]


@app.command("list")
def list_tools(base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "", as_json: AsJson = False) -> None:
    """List tools."""
    with connect(base_url, admin_key) as client:
        columns = ("id", "name", "tenant_id", "url", "credential_header", "is_enabled")
        show_rows(client.rows("/tools"), columns, as_json=as_json)


@app.command("show")
def show_tool(
    tool: Tool, base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "", as_json: AsJson = False
) -> None:
    """Show a tool, without its secret."""
    with connect(base_url, admin_key) as client:
        show_row(_find(client, tool), as_json=as_json)


@app.command("create")
def create_tool(
    name: str,
    description: Description,
    parameters: Parameters,
    url: Url,
    tenant: Owner = None,
    header: Header = None,
    secret_env: SecretEnv = None,
    timeout: Timeout = None,
    max_result_bytes: ResultBytes = None,
    max_rounds: Rounds = None,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Register a tool, which requests then name in `server_tools`."""
    fields = given(
        credential=_credential(header, secret_env),
        timeout_s=timeout,
        max_result_bytes=max_result_bytes,
        max_rounds=max_rounds,
    )
    with connect(base_url, admin_key) as client:
        draft = {
            "name": name,
            "description": description,
            "parameters": _schema(parameters),
            "url": url,
            "tenant_id": tenant_id(client, tenant) if tenant else None,
            **fields,
        }
        show_row(client.post("/tools", draft), as_json=as_json)


@app.command("update")
def update_tool(
    tool: Tool,
    description: Annotated[str | None, typer.Option()] = None,
    parameters: Annotated[str | None, typer.Option(metavar="FILE|JSON")] = None,
    url: Annotated[
        str | None, typer.Option(help="A new URL; if it is at another server, give the credential again.")
    ] = None,
    header: Header = None,
    secret_env: SecretEnv = None,
    no_credential: Annotated[bool, typer.Option("--no-credential", help="Remove the credential.")] = False,
    timeout: Timeout = None,
    max_result_bytes: ResultBytes = None,
    max_rounds: Rounds = None,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable")] = None,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Change a tool. Options that are not given keep their values."""
    changes: dict[str, Any] = dict(
        given(
            description=description,
            parameters=None if parameters is None else _schema(parameters),
            url=url,
            credential=_credential(header, secret_env),
            timeout_s=timeout,
            max_result_bytes=max_result_bytes,
            max_rounds=max_rounds,
            is_enabled=enabled,
        )
    )
    if no_credential:
        changes["credential"] = None
    with connect(base_url, admin_key) as client:
        show_row(client.patch(f"/tools/{_find(client, tool)['id']}", changes), as_json=as_json)


@app.command("delete")
def delete_tool(tool: Tool, base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "") -> None:
    """Delete a tool. Requests that name it are refused from now on."""
    with connect(base_url, admin_key) as client:
        client.delete(f"/tools/{quote(str(_find(client, tool)['id']))}")


def _find(client: "AdminClient", name_or_id: str) -> dict[str, Any]:
    """Raises Failure if no tool has this name, or if tools of several tenants have it."""
    found = [row for row in client.rows("/tools") if name_or_id in (row["id"], row["name"])]
    if len(found) != 1:
        raise Failure(f"there {'is no tool' if not found else 'are several tools'} {name_or_id!r}; `tool list` has ids")
    return found[0]


def _schema(text: str) -> Any:
    source = text if text.lstrip().startswith("{") else _read(Path(text))
    try:
        return json.loads(source)
    except ValueError as error:
        raise Failure(f"--parameters: no JSON: {error}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"--parameters: {path}: {error}") from error


def _credential(header: str | None, secret_env: str | None) -> dict[str, str] | None:
    if secret_env is None:
        if header is not None:
            raise Failure("--header: give the credential's value with --secret-env")
        return None
    secret = os.environ.get(secret_env)
    if not secret:
        raise Failure(f"--secret-env: the environment variable {secret_env!r} is not set")
    return {**given(header=header), "secret": secret}
