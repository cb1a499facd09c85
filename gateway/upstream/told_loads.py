"""Loads that our workers report in the headers of their answers. They are newer than the last full report, and are
parsed only when the fleet is rebuilt."""

import contextlib
from collections.abc import Collection

import msgspec

from protocol.load import LoadReport, with_header
from router.fleet import Member


class ToldLoads:
    def __init__(self) -> None:
        self._unread: dict[str, bytes] = {}
        self._read: dict[str, tuple[LoadReport, LoadReport]] = {}
        """By worker id: its last full report, and that report updated by the headers since."""

    def note(self, worker_id: str, header: bytes) -> None:
        self._unread[worker_id] = header

    def freshen(self, member: Member) -> Member:
        """The member with its load updated by the last header. An invalid header is ignored."""
        if member.load is None:
            return member
        base, fresh = self._read.get(member.worker_id, (None, member.load))
        if base is not member.load:
            fresh = member.load
        header = self._unread.pop(member.worker_id, None)
        if header is not None:
            with contextlib.suppress(ValueError):
                fresh = with_header(member.load, header)
        if fresh is member.load:
            self._read.pop(member.worker_id, None)
            return member
        self._read[member.worker_id] = (member.load, fresh)
        return msgspec.structs.replace(member, load=fresh)

    def forget_all_but(self, worker_ids: Collection[str]) -> None:
        for gone in self._read.keys() - set(worker_ids):
            del self._read[gone]
        for gone in self._unread.keys() - set(worker_ids):
            del self._unread[gone]
