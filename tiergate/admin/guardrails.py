import os
from typing import Annotated, Any

import typer

from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect, given, row_id, tenant_id
from tiergate.admin.output import show_row, show_rows
from tiergate.failure import Failure

app = typer.Typer(name="guardrail", help="Hooks that check what goes to a model and what it says.")

Guardrail = Annotated[str, typer.Argument(metavar="GUARDRAIL", help="The guardrail's name or id.")]
Owner = Annotated[str | None, typer.Option("--tenant", help="Its owner, by name or id; left out: everybody's.")]
SecretEnv = Annotated[
    str | None,
    typer.Option(
        "--authorization-env", metavar="NAME", help="The environment variable with the Authorization header's value."
    ),
]
Model = Annotated[str | None, typer.Option(help="The moderation model that the hook is asked for.")]
Checks = Annotated[str | None, typer.Option(metavar="input|output|both", help="What it checks; default: both.")]
Categories = Annotated[
    list[str] | None, typer.Option("--category", help="One that blocks; repeat it. None: whatever is flagged.")
]
Deadline = Annotated[int | None, typer.Option("--deadline-ms", help="What a check may take; default: 2000.")]
OnFailure = Annotated[
    str | None, typer.Option(metavar="open|closed", help="What becomes of what it cannot check; default: closed.")
]
Window = Annotated[
    int | None, typer.Option("--window-chars", help="How much of a stream is held back at a time; default: 500.")
]


@app.command("list")
def list_guardrails(
    tenant: Owner = None, base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "", as_json: AsJson = False
) -> None:
    """List guardrails; those that check a tenant's requests with --tenant."""
    with connect(base_url, admin_key) as client:
        owner = tenant_id(client, tenant) if tenant else None
        columns = (
            "id",
            "name",
            "tenant_id",
            "url",
            "checks",
            "on_failure",
            "deadline_ms",
            "window_chars",
            "is_enabled",
        )
        show_rows(client.rows("/guardrails", tenant_id=owner), columns, as_json=as_json)


@app.command("add")
def add_guardrail(
    name: str,
    url: Annotated[str, typer.Option(help="Answers as OpenAI's /v1/moderations does.")],
    tenant: Owner = None,
    authorization_env: SecretEnv = None,
    model: Model = None,
    checks: Checks = None,
    categories: Categories = None,
    deadline_ms: Deadline = None,
    on_failure: OnFailure = None,
    window_chars: Window = None,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Have requests checked from now on."""
    fields = given(
        authorization=_authorization(authorization_env),
        model=model,
        checks=checks,
        categories=categories or None,
        deadline_ms=deadline_ms,
        on_failure=on_failure,
        window_chars=window_chars,
    )
    with connect(base_url, admin_key) as client:
        owner = tenant_id(client, tenant) if tenant else None
        show_row(client.post("/guardrails", {"name": name, "url": url, "tenant_id": owner, **fields}), as_json=as_json)


@app.command("set")
def set_guardrail(
    guardrail: Guardrail,
    tenant: Owner = None,
    url: Annotated[str | None, typer.Option(help="At another server: give the authorization again.")] = None,
    authorization_env: SecretEnv = None,
    no_authorization: Annotated[bool, typer.Option("--no-authorization", help="Forget the authorization.")] = False,
    model: Model = None,
    checks: Checks = None,
    categories: Categories = None,
    all_categories: Annotated[bool, typer.Option("--all-categories", help="Block whatever is flagged.")] = False,
    deadline_ms: Deadline = None,
    on_failure: OnFailure = None,
    window_chars: Window = None,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable")] = None,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Change a guardrail; what is not given stays."""
    changes: dict[str, Any] = dict(
        given(
            url=url,
            authorization=_authorization(authorization_env),
            model=model,
            checks=checks,
            categories=[] if all_categories else categories or None,
            deadline_ms=deadline_ms,
            on_failure=on_failure,
            window_chars=window_chars,
            is_enabled=enabled,
        )
    )
    if no_authorization:
        changes["authorization"] = None
    with connect(base_url, admin_key) as client:
        found = row_id(client, "/guardrails", guardrail, noun="guardrail", tenant=tenant)
        show_row(client.patch(f"/guardrails/{found}", changes), as_json=as_json)


@app.command("remove")
def remove_guardrail(
    guardrail: Guardrail, tenant: Owner = None, base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = ""
) -> None:
    """Have nothing checked by it any more."""
    with connect(base_url, admin_key) as client:
        client.delete(f"/guardrails/{row_id(client, '/guardrails', guardrail, noun='guardrail', tenant=tenant)}")


def _authorization(variable: str | None) -> str | None:
    if variable is None:
        return None
    value = os.environ.get(variable)
    if not value:
        raise Failure(f"--authorization-env: the environment variable {variable!r} is not set")
    return value
