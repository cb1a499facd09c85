"""The caller as described by the headers; the platform's own headers count only from a trusted caller."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import unquote

from protocol.accounting import ACCOUNTING_HEADER
from protocol.errors import ProtocolError
from protocol.ids import make_uuid7

_DEFAULT_PRIORITY = 2
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass(frozen=True, kw_only=True)
class Caller:
    """is_trusted: the caller presented the worker key. deadline_at: on the `time.monotonic()` clock.

    shown_model: the model name to show in answers, if clients know the model by a name other than the body's.
    wants_events: report the tokens of a non-streamed answer, too, while it is generated; see `protocol.accounting`.
    """

    request_id: str
    is_trusted: bool
    wants_accounting: bool
    wants_events: bool
    shown_model: str | None = None
    tenant: str = ""
    weight: float = 1.0
    deadline_at: float | None = None

    def priority(self, wanted: int | None) -> int:
        """The body's priority counts only from a trusted caller."""
        return wanted if self.is_trusted and wanted is not None else _DEFAULT_PRIORITY

    def cache_salt(self, wanted: str | None) -> str:
        """The body's salt counts only from a trusted caller."""
        return wanted or "" if self.is_trusted else ""


def read_caller(headers: Mapping[str, str], *, has_key: bool) -> Caller:
    """has_key: this worker requires a key, so the caller has presented it. Raises ProtocolError."""
    sent_id = headers.get("x-request-id", "")
    request_id = sent_id if _REQUEST_ID.fullmatch(sent_id) else str(make_uuid7(time.time_ns() // 1_000_000))
    # Without a key the worker listens on loopback only: any caller may see the accounting, but not set priorities.
    accounting = headers.get(ACCOUNTING_HEADER)
    caller = Caller(
        request_id=request_id,
        is_trusted=has_key,
        wants_accounting=accounting in ("1", "events"),
        wants_events=accounting == "events",
    )
    if not has_key:
        return caller
    deadline_ms = _number(headers, "x-tiergate-deadline-ms")
    shown_model = headers.get("x-tiergate-model")
    return replace(
        caller,
        shown_model=None if shown_model is None else unquote(shown_model),
        tenant=headers.get("x-tiergate-tenant", ""),
        weight=_number(headers, "x-tiergate-weight") or 1.0,
        deadline_at=None if deadline_ms is None else time.monotonic() + deadline_ms / 1e3,
    )


def _number(headers: Mapping[str, str], name: str) -> float | None:
    text = headers.get(name)
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf"):
        raise ProtocolError(f"the header {name} must be a positive number, got {text!r}", param=name)
    return number
