import os
from typing import Annotated, Any

import typer

from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect, given, row_id, tenant_id
from tiergate.admin.output import show_row, show_rows
from tiergate.failure import Failure

app = typer.Typer(name="guardrail", help="Guardrails: hooks that check the prompts and answers of models.")

Guardrail = Annotated[str, typer.Argument(metavar="GUARDRAIL", help="The guardrail's name or id.")]
Owner = Annotated[
    str | None, typer.Option("--tenant", help="The owner, a tenant's name or id; without it: everybody's.")
]
SecretEnv = Annotated[
    str | None,
    typer.Option(
        "--authorization-env", metavar="NAME", help="The environment variable with the Authorization header's value."
    ),
]
Model = Annotated[str | None, typer.Option(help="The moderation model, sent to the hook as `model`.")]
Checks = Annotated[
    str | None, typer.Option(metavar="input|output|both", help="What the guardrail checks; default: both.")
]
Categories = Annotated[
    list[str] | None,
    typer.Option("--category", help="A category that blocks; may be repeated. None: whatever is flagged blocks."),
]
Deadline = Annotated[
    int | None, typer.Option("--deadline-ms", help="The milliseconds that a check may take; default: 2000.")
]
OnFailure = Annotated[
    str | None,
    typer.Option(
        metavar="open|closed",
        help="Whether text that cannot be checked passes (open) or is refused (closed); default: closed.",
    ),
]
Window = Annotated[
    int | None,
    typer.Option("--window-chars", help="How many characters of a stream are held back until checked; default: 500."),
]


@app.command("list")
def list_guardrails(
    tenant: Owner = None, base_url: BaseUrl = DEFAULT_BASE_URL, admin_key: AdminKey = "", as_json: AsJson = False
) -> None:
    """List guardrails; with --tenant, those that check the tenant's requests."""
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
    url: Annotated[str, typer.Option(help="The hook's URL, which answers as OpenAI's /v1/moderations does.")],
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
    """Add a guardrail, which checks requests from now on."""
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
    url: Annotated[
        str | None, typer.Option(help="A new URL; if it is at another server, give the authorization again.")
    ] = None,
    authorization_env: SecretEnv = None,
    no_authorization: Annotated[bool, typer.Option("--no-authorization", help="Remove the authorization.")] = False,
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
    """Change a guardrail. Options that are not given keep their values."""
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
    """Remove a guardrail, which then checks no further requests."""
    with connect(base_url, admin_key) as client:
        client.delete(f"/guardrails/{row_id(client, '/guardrails', guardrail, noun='guardrail', tenant=tenant)}")


def _authorization(variable: str | None) -> str | None:
    if variable is None:
        return None
    value = os.environ.get(variable)
    if not value:
        raise Failure(f"--authorization-env: the environment variable {variable!r} is not set")
    return value
