"""What a gateway counts beside its usage events, on the same way as they: refusals before admission, and admissions."""

from typing import Literal

import msgspec


class RefusalCount(msgspec.Struct, array_like=True, frozen=True):
    """How often a key was refused for one reason within a minute, by this gateway, so far.

    `tenant_id` and `key_id` are empty where the key is not known. `limit`: the error's code.
    """

    minute_s: int
    """Unix time of its start."""
    tenant_id: str
    key_id: str
    limit: str
    status: int
    count: int


class AdmissionCount(msgspec.Struct, array_like=True, frozen=True):
    """Requests of a tenant that arrived within an hour and were admitted by this gateway, and how many of them it has
    closed, so far: each becomes one usage event."""

    hour_s: int
    """Unix time of its start."""
    tenant_id: str
    num_admitted: int
    num_closed: int


class GatewayCounts(msgspec.Struct, kw_only=True, frozen=True):
    """Counts so far of one incarnation of a gateway: a higher one replaces a lower, whatever the order of arrival."""

    kind: Literal["gateway_counts"] = "gateway_counts"
    gateway: str
    refusals: tuple[RefusalCount, ...] = ()
    admissions: tuple[AdmissionCount, ...] = ()
