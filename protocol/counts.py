"""Counts that a gateway ships along with its usage events: refusals before admission, and admissions."""

from typing import Literal

import msgspec


class RefusalCount(msgspec.Struct, array_like=True, frozen=True):
    """How often this gateway has refused a key for one reason within a minute, so far.

    `tenant_id` and `key_id` are empty if the key is unknown. `limit`: the error's code.
    """

    minute_s: int
    """Start of the minute, in Unix time."""
    tenant_id: str
    key_id: str
    limit: str
    status: int
    count: int


class AdmissionCount(msgspec.Struct, array_like=True, frozen=True):
    """A tenant's requests that arrived within an hour and that this gateway has admitted, and how many of them it has
    closed, so far. Each closed request becomes one usage event."""

    hour_s: int
    """Start of the hour, in Unix time."""
    tenant_id: str
    num_admitted: int
    num_closed: int


class GatewayCounts(msgspec.Struct, kw_only=True, frozen=True):
    """Counts so far of one incarnation of a gateway. A higher count replaces a lower one, in whatever order they
    arrive."""

    kind: Literal["gateway_counts"] = "gateway_counts"
    gateway: str
    refusals: tuple[RefusalCount, ...] = ()
    admissions: tuple[AdmissionCount, ...] = ()
