"""The actual figures of a dead gateway's requests, on their way to the counters in Redis: one file per adopted outbox.

The process that adopts an outbox writes the file, whether or not it can reach Redis. A live gateway on the same machine
settles the file's requests (`leases.py`). Until then Redis counts what the requests had reserved.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import msgspec
from msgspec import Meta

from protocol.usage import UsageEvent

_FOLDER = "unsettled"


class CameTo(msgspec.Struct, frozen=True, array_like=True):
    request_id: str
    tenant_id: Annotated[str, Meta(pattern="^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
    tokens: int
    cost_nanousd: int
    is_refund: bool
    """The request failed, so it counts as if it had never been made."""


class Unsettled(msgspec.Struct, frozen=True):
    incarnation: str
    requests: tuple[CameTo, ...]


_decode = msgspec.json.Decoder(Unsettled).decode


def write_unsettled(data_dir: Path, incarnation: str, events: Iterable[UsageEvent]) -> None:
    """Write the file durably and atomically, also without events: requests that left none are then given back. Settling
    a request twice counts once. Raises OSError.

    events: all that the gateway left.
    """
    requests = tuple(map(_came_to, events))
    folder = data_dir / _FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = uuid4().hex
    draft = folder / f"{name}.tmp"
    with draft.open("wb") as file:
        file.write(msgspec.json.encode(Unsettled(incarnation, requests)))
        file.flush()
        os.fsync(file.fileno())
    draft.rename(folder / f"{name}.json")
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_unsettled(data_dir: Path) -> Iterator[tuple[Path, Unsettled]]:
    """The files, each of which the caller must delete once it is settled. Files in any other format are skipped."""
    for path in sorted((data_dir / _FOLDER).glob("*.json")):
        try:
            yield path, _decode(path.read_bytes())
        except (FileNotFoundError, msgspec.MsgspecError):
            # Another process has settled the file, or it is not ours.
            continue


def _came_to(event: UsageEvent) -> CameTo:
    tokens = event.prompt_tokens + event.completion_tokens
    # An error that was told in mid-answer is not refunded: then there are tokens.
    is_refund = event.status == "error" and not tokens
    return CameTo(event.request_id, str(event.tenant_id), tokens, event.cost_nanousd, is_refund)
