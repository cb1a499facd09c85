"""Checks of usage on its way from a request to the bill: limiter, outbox, consumer, ClickHouse, reconciliation."""

from datetime import datetime, timedelta

from gateway.dashboard.health.troubles import Trouble
from gateway.http.errors import Unavailable
from gateway.metering.statements import BoundQuery
from gateway.metering.windows import Window
from gateway.services import Services

MAX_LAG_S = 60.0
FILLING = 0.5
MAX_SWEEP_AGE = timedelta(minutes=5)
LOOK_BACK = timedelta(hours=24)
_SWEEPS = "SELECT max(swept_at) AS swept_at, count() AS num FROM usage_rollup_sweeps"


async def look_at_limiter(services: Services, now: datetime) -> list[Trouble]:
    if not services.limiter.is_local:
        return []
    return [
        Trouble(
            "error",
            "Valkey (Redis) does not answer: each gateway limits its tenants alone, at its share.",
            "Start it, or look at the network to it. Limits hold again by themselves when it is back.",
        )
    ]


async def look_at_outbox(services: Services, now: datetime) -> list[Trouble]:
    found = []
    if services.outbox.failure is not None:
        found.append(
            Trouble(
                "error",
                f"The disk takes no usage: {services.outbox.failure}. New requests are refused.",
                "Free the disk of TIERGATE_DATA_DIR, or make it writable. Do not stop this gateway before: what only "
                "its memory holds would go to the log.",
            )
        )
    if services.room.shortage is not None:
        found.append(
            Trouble(
                "error",
                f"New requests are refused, since {services.room.shortage}.",
                "Start the consumer (with Kafka: the producer), free the disk, or raise TIERGATE_OUTBOX_MAX_BYTES.",
            )
        )
    waiting = await services.backlog.read()
    if services.room.shortage is None and waiting.num_bytes > FILLING * services.room.max_bytes:
        found.append(
            Trouble(
                "warning",
                f"Usage that waits takes {100 * waiting.num_bytes // services.room.max_bytes} % of what the outbox "
                "may hold; at all of it requests are refused.",
                "Start the consumer (with Kafka: the producer), or raise TIERGATE_OUTBOX_MAX_BYTES meanwhile.",
            )
        )
    if waiting.lag_s(now) > MAX_LAG_S:
        found.append(
            Trouble(
                "warning",
                f"{waiting.num_events:,} events have waited in the outbox for up to {waiting.lag_s(now):,.0f} s. "
                "Nothing is lost, but what is shown here is behind.",
                "Is the consumer (with Kafka: the producer) running on this machine? Its log says what it waits for.",
            )
        )
    if waiting.num_refused:
        found.append(
            Trouble(
                "error",
                f"{waiting.num_refused:,} events that nothing takes were set aside, and are not billed.",
                "The reason stands beside them in the outbox; docs/configuration.md tells how they are sent again. "
                "With Kafka, see tiergate dead-letters list, too.",
            )
        )
    return found


async def look_at_clickhouse(services: Services, now: datetime) -> list[Trouble]:
    if services.settings.clickhouse_url is None:
        return [
            Trouble(
                "warning",
                "This gateway has no ClickHouse: usage waits in the outbox, and nothing can be billed.",
                "Set TIERGATE_CLICKHOUSE_URL, and start tiergate consumer.",
            )
        ]
    try:
        [row] = await services.usage.fetch(BoundQuery(_SWEEPS, {}))
    except Unavailable:
        return [
            Trouble(
                "error",
                "ClickHouse does not answer, or not as it should: usage cannot be shown, and drafts cannot be made.",
                "Start it, and look at its log and at TIERGATE_CLICKHOUSE_URL. Nothing is lost: events wait in the "
                "outbox or in Kafka.",
            )
        ]
    if row["num"] and now - row["swept_at"] <= MAX_SWEEP_AGE:
        return []
    since = f"since {row['swept_at']:%-d %b %H:%M} UTC" if row["num"] else "yet"
    return [
        Trouble(
            "warning",
            f"No consumer has brought the roll-ups up to date {since}.",
            "Is tiergate consumer running? Its log says what it waits for.",
        )
    ]


async def look_at_reconciliation(services: Services, now: datetime) -> list[Trouble]:
    if services.settings.clickhouse_url is None:
        return []
    found = await services.reconciler.latest(Window(now - LOOK_BACK, now), now=now)
    troubles = []
    for number, noun in ((found.num_unreconciled_events, "requests"), (found.num_unreconciled_tokens, "tokens")):
        if number:
            troubles.append(
                Trouble(
                    "error",
                    f"{number:,} {noun} of the last 24 hours are not accounted for.",
                    "Reconciliation names tenant and hour, and what to do.",
                    "/dashboard/reconciliation",
                )
            )
    return troubles
