"""Usage events that could not be stored as rows: lists them with the reason, and sends them again."""

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiergate.admin.options import AsJson
from tiergate.commands.settings import gateway_settings
from tiergate.failure import Failure

if TYPE_CHECKING:
    from gateway.settings import GatewaySettings

app = typer.Typer(name="dead-letters", help="Usage events that could not be stored: list them, or send them again.")
Config = Annotated[Path | None, typer.Option(help="A TOML file; default: tiergate.toml, if it exists.")]


@app.command("list")
def list_command(config: Config = None) -> None:
    """List dead letters, one JSON object per line: the reason, where the event was found, and the event."""
    settings = gateway_settings(config)
    with _spoken():
        for reason, origin, event in _found(settings):
            typer.echo(json.dumps({"reason": reason, "origin": origin, "event": event.decode(errors="replace")}))


@app.command("replay")
def replay_command(config: Config = None, as_json: AsJson = False) -> None:
    """Send all dead letters again; those that are still wrong come back with their reason."""
    from gateway.metering.set_aside import replay_set_aside

    settings = gateway_settings(config)
    with _spoken():
        num_events = replay_set_aside(settings.data_dir)
        if settings.kafka_bootstrap_servers:
            from gateway.metering.kafka.dead_letters import replay_dead_letters

            num_events += replay_dead_letters(settings, threading.Event())
    told = f"{num_events} events are on their way again"
    typer.echo(json.dumps({"num_events": num_events}) if as_json else told)


def _found(settings: "GatewaySettings") -> Iterator[tuple[str, str, bytes]]:
    from gateway.metering.set_aside import list_set_aside

    for event, reason in list_set_aside(settings.data_dir):
        yield reason, "outbox", event
    if settings.kafka_bootstrap_servers:
        from gateway.metering.kafka.dead_letters import list_dead_letters

        for letter in list_dead_letters(settings):
            yield letter.reason, letter.origin, letter.record.value or b""


@contextmanager
def _spoken() -> Iterator[None]:
    """Turns errors into one-line failures."""
    from gateway.metering.drain import TargetUnavailable
    from gateway.settings import ConfigError

    try:
        yield
    except (ConfigError, TargetUnavailable, sqlite3.Error) as error:
        raise Failure(str(error)) from error
