"""Limits in bodies of the admin API: a number sets a limit, null restores what applies without it."""

from typing import Annotated

from pydantic import Field

from gateway.admin.names import Draft

Count = Annotated[int, Field(ge=0, le=2**53)]
SmallCount = Annotated[int, Field(ge=0, le=2**31 - 1)]
Tokens = Annotated[int, Field(ge=1, le=2**31 - 1)]


class UserLimits(Draft):
    """Limits of an end user, counted separately from the tenant's."""

    requests_per_minute: SmallCount | None = None
    tokens_per_minute: Count | None = None
    concurrency: SmallCount | None = None
    tokens_per_day: Count | None = None
    budget_nanousd_per_month: Count | None = None


class KeyLimits(UserLimits):
    """Limits of a key, counted separately from the tenant's. `context_tokens` can only narrow the tenant's."""

    context_tokens: Tokens | None = None
    default_max_tokens: Tokens | None = None


class TenantLimits(KeyLimits):
    """Limits of a tenant, each of which replaces its tier's."""

    max_adapters: SmallCount | None = None
