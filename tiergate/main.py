"""The command line. Commands import what they need when they run: the gateway never loads torch, `--help` nothing."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from tiergate.admin import (
    adapters,
    audit,
    erase,
    guardrails,
    invoices,
    keys,
    login,
    models,
    prices,
    reconcile,
    tenants,
    tiers,
    tools,
    usage,
    users,
)
from tiergate.commands import (
    admin_key,
    backup,
    chat,
    clickhouse,
    consumer,
    dead_letters,
    doctor,
    gateway,
    migrate,
    pepper,
    producer,
    router,
    up,
    watermark,
    worker,
)

INTERRUPTED = 130


def make_app() -> typer.Typer:
    app = typer.Typer(
        name="tiergate",
        help="Self-hosted, multi-tenant LLM API platform.",
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for command in (
        up.up,
        gateway.gateway,
        worker.worker,
        producer.producer,
        consumer.consumer,
        clickhouse.clickhouse,
        migrate.migrate,
    ):
        app.command(rich_help_panel="Run")(command)
    app.command(rich_help_panel="Run", name="admin-key")(admin_key.admin_key)
    app.command(rich_help_panel="Run")(doctor.doctor)
    app.command(rich_help_panel="Run")(backup.backup)
    app.command(rich_help_panel="Run", name="verify-backup")(backup.verify_backup)
    app.command(rich_help_panel="Run")(backup.restore)
    app.command(rich_help_panel="Use")(chat.chat)
    app.add_typer(usage.app, rich_help_panel="Use")
    app.command(rich_help_panel="Administer a running platform")(login.login)
    app.command(rich_help_panel="Administer a running platform")(login.logout)
    app.command(rich_help_panel="Administer a running platform", name="profiles")(login.list_profiles)
    app.command(rich_help_panel="Administer a running platform")(reconcile.reconcile)
    app.command(rich_help_panel="Administer a running platform")(erase.erase)
    app.add_typer(dead_letters.app, rich_help_panel="Run")
    app.add_typer(pepper.app, rich_help_panel="Run")
    for group in (
        tenants.app,
        users.app,
        keys.app,
        tiers.app,
        models.app,
        adapters.app,
        prices.app,
        invoices.app,
        tools.app,
        guardrails.app,
        audit.app,
    ):
        app.add_typer(group, rich_help_panel="Administer a running platform")
    app.add_typer(router.app, rich_help_panel="Use")
    app.add_typer(watermark.app, rich_help_panel="Use")
    return app


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(f"tiergate {version('tiergate')}")
        raise typer.Exit()


def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Self-hosted, multi-tenant LLM API platform."""


def run(arguments: Sequence[str]) -> int:
    """Run a command, and return the exit code. A mistake of the user is one line on stderr, with code 2."""
    try:
        result = make_app()(list(arguments) or ["--help"], standalone_mode=False, prog_name="tiergate")
    except typer.TyperException as error:
        sys.stderr.write(f"{_spoken_name(arguments)}: {' '.join(error.format_message().split())}\n")
        return error.exit_code
    except typer.Exit as ended:
        return ended.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    return result if isinstance(result, int) else 0


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def _spoken_name(arguments: Sequence[str]) -> str:
    if not arguments or arguments[0].startswith("-"):
        return "tiergate"
    return f"tiergate {arguments[0]}"
