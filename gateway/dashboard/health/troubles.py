"""Troubles, and the checks that find them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy.exc import SQLAlchemyError

from gateway.http.errors import GatewayError
from gateway.services import Services

DEADLINE_S = 8.0
Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Trouble:
    """severity `error`: requests fail, or are not billed; `warning`: they may soon."""

    severity: Severity
    what: str
    advice: str
    href: str = ""
    """The page to look at."""


@dataclass(frozen=True)
class Check:
    subject: str
    """What the check looks at; it is shown even if nothing is wrong."""
    look: Callable[[Services, datetime], Awaitable[list[Trouble]]]


@dataclass(frozen=True)
class Finding:
    subject: str
    troubles: Sequence[Trouble]


async def find_troubles(checks: Sequence[Check], services: Services, *, now: datetime) -> list[Finding]:
    return list(await asyncio.gather(*(_find(check, services, now) for check in checks)))


async def _find(check: Check, services: Services, now: datetime) -> Finding:
    """A check that cannot be carried out is a trouble, too."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            return Finding(check.subject, await check.look(services, now))
    except (GatewayError, SQLAlchemyError, OSError, TimeoutError) as error:
        reason = error.message if isinstance(error, GatewayError) else type(error).__name__
        unseen = Trouble("warning", f"This cannot be judged now: {reason}", "Look again once the others are mended.")
        return Finding(check.subject, [unseen])
