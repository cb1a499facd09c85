"""`tiergate usage rebuild`: the rollups of a time range made again, where somebody changed events by hand."""

import sys
from contextlib import closing
from datetime import datetime
from pathlib import Path


def rebuild_rollups(config: Path | None, since: datetime, until: datetime) -> int:
    """The exit status."""
    from clickhouse_connect.driver.exceptions import ClickHouseError

    from gateway.clock import utc_now
    from gateway.metering.rollups.keeper import RollupKeeper
    from gateway.metering.rollups.retention import Retention
    from tiergate.commands.settings import gateway_settings

    settings = gateway_settings(config)
    if not settings.clickhouse_url:
        sys.stderr.write("tiergate usage rebuild: TIERGATE_CLICKHOUSE_URL is not set\n")
        return 2
    num_done = 0
    try:
        with closing(RollupKeeper(settings.clickhouse_url, Retention.of(settings))) as keeper:
            for num_done, num_hours in keeper.rebuild(since, until, now=utc_now()):
                sys.stderr.write(f"{num_done} of {num_hours} hours\n")
    except (ClickHouseError, OSError) as error:
        sys.stderr.write(f"tiergate usage rebuild: {str(error).splitlines()[0][:300]}\n")
        return 1
    sys.stdout.write(f"{num_done} hours made again\n")
    return 0
