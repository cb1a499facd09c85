"""Notifies a tenant's webhooks, once a month each, when 80 % and when 100 % of its budget is spent."""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy.exc import SQLAlchemyError

from gateway.clock import utc_now
from gateway.database import Sessions
from gateway.domain.catalog import CatalogCache
from gateway.domain.tenants.models import Tenant
from gateway.domain.webhooks.service import EventName, announce, hold_lease, tenants_to_tell
from gateway.limits.ledger import Ledger, LedgerAway

_log = logging.getLogger(__name__)

CHECK_S = 30
_LEASE = timedelta(seconds=90)
THRESHOLDS: tuple[tuple[int, EventName], ...] = ((80, "budget.80"), (100, "budget.100"))


class BudgetAlerts:
    def __init__(
        self,
        sessions: Sessions,
        catalog: CatalogCache,
        ledger: Ledger,
        *,
        holder: str,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._sessions = sessions
        self._catalog = catalog
        self._ledger = ledger
        self._holder = holder
        self._clock = clock

    async def check_forever(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                await self.check()
            except (SQLAlchemyError, LedgerAway, OSError, TimeoutError) as error:
                _log.warning("budgets cannot be checked for alerts: %s", error)

    async def check(self) -> int:
        """Queue due alerts for webhooks; returns how many. Does nothing if another process holds the lease.

        Raises LedgerAway."""
        now = self._clock()
        tenants = await tenants_to_tell(self._sessions, [event for _, event in THRESHOLDS])
        if not tenants or not await hold_lease(self._sessions, "budget-alerts", self._holder, now=now, lasts=_LEASE):
            return 0
        num_alerts = 0
        for tenant_id in tenants:
            async with self._sessions() as session:
                tenant = await session.get(Tenant, tenant_id)
            tier = None if tenant is None else self._catalog.current.tenant_tier(str(tenant.id), tenant.tier)
            budget = None if tier is None else tier.budget_nanousd_per_month
            if budget is None:
                continue
            spent = (await self._ledger.used(tenant_id, "tenant", now)).spent_this_month
            for percent, event in THRESHOLDS:
                if spent * 100 >= budget * percent:
                    data = {
                        "tenant_id": str(tenant_id),
                        "month": f"{now:%Y-%m}",
                        "percent": percent,
                        "budget_nanousd": budget,
                        "spent_nanousd": spent,
                    }
                    num_alerts += await announce(
                        self._sessions,
                        tenant_id=tenant_id,
                        event=event,
                        occasion=f"{now:%Y-%m}",
                        data=data,
                        now=now,
                    )
        return num_alerts
