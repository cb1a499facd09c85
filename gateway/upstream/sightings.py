"""Worker registrations as this gateway sees them in Redis: which of them are authentic, new and alive."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from protocol.load import STALE_AFTER_S, BadSignature, Registration, unseal

_log = logging.getLogger(__name__)

REMEMBERED_S = 3600.0
"""How long the last registration of a worker that is gone is not accepted again if somebody writes it back."""
UNCHANGED_S = 60.0
_MAX_COMPLAINTS = 1000


@dataclass(slots=True)
class _Sighting:
    registration: Registration
    changed_at: float
    """On our own monotonic clock, so that clock skew does not make a live worker stale."""


class Sightings:
    """Times are `time.monotonic()`. A rejected registration is logged once, not on every heartbeat."""

    def __init__(self, worker_keys: Sequence[str]) -> None:
        self._worker_keys = worker_keys
        self._sightings: dict[str, _Sighting] = {}
        self._gone: dict[str, tuple[int, float]] = {}
        """Workers that are gone, by id: when their last registration was sent (ms), and when they went."""
        self._complaints: set[str] = set()
        self._old: dict[str, tuple[int, float]] = {}
        """Old registrations that were rejected, by id: when they were sent (ms), and since when they are unchanged."""

    def registrations(self) -> list[Registration]:
        """One registration per address, the newest: a worker that was restarted there has a new id."""
        newest: dict[str, Registration] = {}
        for registration in sorted(self._all(), key=lambda each: each.sent_at_ms):
            newest[registration.url] = registration
        return list(newest.values())

    def note(self, sealed: Mapping[bytes, bytes], now: float, *, is_settled: bool) -> None:
        """is_settled: a worker that Redis does not list is gone. Not so right after an outage, when Redis may be empty
        for a moment."""
        for name, value in sealed.items():
            self._read(name.decode(errors="replace"), value, now)
        present = {name.decode(errors="replace") for name in sealed}
        for worker_id, sighting in list(self._sightings.items()):
            is_stale = now - sighting.changed_at > STALE_AFTER_S
            if is_stale or (is_settled and worker_id not in present):
                self._gone[worker_id] = (sighting.registration.sent_at_ms, now)
                del self._sightings[worker_id]
        self._old = {name: old for name, old in self._old.items() if name in present}
        self._gone = {name: gone for name, gone in self._gone.items() if now - gone[1] < REMEMBERED_S}

    def take_long_dead(self, now: float) -> list[str]:
        """Workers that died more than an hour ago without deregistering, whose registrations may be removed.

        The age alone is not enough, because a clock may be an hour off; the registration must also be unchanged, since
        a live worker rewrites it every half second.
        """
        found = [name for name, (_, since) in self._old.items() if now - since > UNCHANGED_S]
        for name in found:
            del self._old[name]
        return found

    def keep(self, now: float) -> None:
        """Redis could not be read, so no worker may become stale."""
        for sighting in self._sightings.values():
            sighting.changed_at = now

    def _all(self) -> Iterable[Registration]:
        return [sighting.registration for sighting in self._sightings.values()]

    def _read(self, name: str, value: bytes, now: float) -> None:
        try:
            registration = unseal(value, worker_keys=self._worker_keys)
        except (BadSignature, msgspec.MsgspecError) as error:
            self._complain(name, str(error))
            return
        parts = urlsplit(registration.url)
        if registration.load.worker_id != name:
            self._complain(name, f"it was made by {registration.load.worker_id!r}")
        elif parts.scheme not in ("http", "https") or not parts.hostname:
            self._complain(name, f"{registration.url!r} is no address of an HTTP server")
        else:
            self._see(registration, now)

    def _see(self, registration: Registration, now: float) -> None:
        worker_id, sent_at_ms = registration.load.worker_id, registration.sent_at_ms
        known = self._sightings.get(worker_id)
        if known is not None:
            # Only a later registration counts: an old one that somebody has written back is no sign of life.
            if sent_at_ms > known.registration.sent_at_ms:
                self._sightings[worker_id] = _Sighting(registration, now)
            return
        last_sent_at_ms, _ = self._gone.get(worker_id, (-1, 0.0))
        if sent_at_ms <= last_sent_at_ms:
            return
        # A registration seen for the first time may belong to a worker that died long ago.
        age_s = time.time() - sent_at_ms / 1000
        if abs(age_s) < STALE_AFTER_S:
            self._gone.pop(worker_id, None)
            self._sightings[worker_id] = _Sighting(registration, now)
        elif age_s < 0:
            self._complain(worker_id, "it comes from the future; are both clocks right?")
        else:
            self._complain(worker_id, "it is old: the worker is gone, or its clock or ours is wrong")
            if age_s > REMEMBERED_S and self._old.get(worker_id, (None, now))[0] != sent_at_ms:
                self._old[worker_id] = (sent_at_ms, now)

    def _complain(self, name: str, why: str) -> None:
        if f"{name} {why}" not in self._complaints:
            if len(self._complaints) >= _MAX_COMPLAINTS:
                self._complaints.clear()
            self._complaints.add(f"{name} {why}")
            _log.warning("the registration of %r is not taken: %s", name, why)
