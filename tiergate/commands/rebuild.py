"""`tiergate usage rebuild`: recomputes the rollups of a time range, after somebody changed events by hand."""

from contextlib import closing
from datetime import datetime
from pathlib import Path

from tiergate.failure import Failure


def rebuild_rollups(config: Path | None, since: datetime, until: datetime) -> int:
    """Returns how many hours were recomputed. Raises Failure."""
    from clickhouse_connect.driver.exceptions import ClickHouseError

    from gateway.clock import utc_now
    from gateway.metering.rollups.keeper import RollupKeeper
    from gateway.metering.rollups.retention import Retention
    from tiergate.commands.settings import gateway_settings
    from tiergate.progress import Progress

    settings = gateway_settings(config)
    if not settings.clickhouse_url:
        raise Failure("TIERGATE_CLICKHOUSE_URL is not set")
    num_done = 0
    progress = Progress("hours")
    try:
        with closing(RollupKeeper(settings.clickhouse_url, Retention.of(settings))) as keeper:
            for num_done, num_hours in keeper.rebuild(since, until, now=utc_now()):
                progress.show(num_done, total=num_hours)
    except (ClickHouseError, OSError) as error:
        raise Failure(f"TIERGATE_CLICKHOUSE_URL: {str(error).splitlines()[0][:300]}", exit_code=1) from error
    finally:
        progress.end()
    return num_done
