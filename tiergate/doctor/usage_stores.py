"""Checks the stores of usage events: ClickHouse and Kafka."""

import asyncio
from importlib.resources import files

from clickhouse_connect.driver.exceptions import ClickHouseError

from gateway.metering.clickhouse import connect, database_of
from gateway.settings import ConfigError, GatewaySettings
from tiergate.doctor.findings import Finding, error, one_line, warning

MIN_CLICKHOUSE = (24, 3)
DEADLINE_S = 5


async def look_at_clickhouse(settings: GatewaySettings) -> list[Finding]:
    if settings.clickhouse_url is None:
        what = "there is no TIERGATE_CLICKHOUSE_URL: usage waits on this machine, and invoices cannot be made"
        return [warning("no-clickhouse", what, "set it, and run `tiergate consumer`")]
    return await asyncio.to_thread(_clickhouse, settings.clickhouse_url)


def _clickhouse(url: str) -> list[Finding]:
    try:
        client = connect(url, deadline_s=DEADLINE_S)
    except (ClickHouseError, OSError) as problem:
        todo = "start it, or correct TIERGATE_CLICKHOUSE_URL; usage waits meanwhile, and is not lost"
        return [error("clickhouse-away", f"ClickHouse cannot be used: {one_line(problem)}", todo)]
    try:
        found = judge_version(client.server_version or "")
        table = "SELECT count() FROM system.tables WHERE database = {database:String} AND name = 'schema_migrations'"
        database = database_of(url)
        if not client.query(table, parameters={"database": database}).result_rows[0][0]:
            todo = "start `tiergate consumer`, which makes the tables"
            return [*found, error("clickhouse-empty", f"the database {database} has none of our tables", todo)]
        names = client.query(f"SELECT DISTINCT name FROM `{database.replace('`', '')}`.schema_migrations").result_rows
    except (ClickHouseError, OSError) as problem:
        return [error("clickhouse-away", f"ClickHouse refuses us: {one_line(problem)}", "grant the user our database")]
    finally:
        client.close()
    behind = _wanted() - {name for (name,) in names}
    if behind:
        what = f"ClickHouse lacks {', '.join(sorted(behind))}"
        found.append(error("clickhouse-behind", what, "restart `tiergate consumer`, which brings it up to date"))
    return found


def judge_version(version: str) -> list[Finding]:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers >= MIN_CLICKHOUSE:
        return []
    wanted = ".".join(map(str, MIN_CLICKHOUSE))
    return [error("clickhouse-version", f"ClickHouse is {version}", f"use {wanted} or newer")]


async def look_at_kafka(settings: GatewaySettings) -> list[Finding]:
    if not settings.kafka_bootstrap_servers:
        return []
    return await asyncio.to_thread(_kafka, settings)


def _kafka(settings: GatewaySettings) -> list[Finding]:
    found = []
    if settings.kafka_replication < 2:
        what = "TIERGATE_KAFKA_REPLICATION is 1: a broker's disk that dies takes usage along"
        found.append(warning("kafka-replication", what, "3, with three brokers"))
    try:
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        from gateway.metering.kafka.connection import KafkaUnavailable, client_options
        from gateway.metering.kafka.topics import check_topics
    except ImportError:
        return [*found, error("kafka-library", "the extra `kafka` is not installed", "pip install 'tiergate[kafka]'")]
    todo = "start it, or correct TIERGATE_KAFKA_BOOTSTRAP_SERVERS; usage waits meanwhile, and is not lost"
    try:
        admin = KafkaAdminClient(**client_options(settings))
        try:
            check_topics(admin, settings)
        finally:
            admin.close()
    except ConfigError as problem:
        found.append(error("kafka-topic", one_line(problem), "alter the topic, or the setting that is named"))
    except (KafkaError, KafkaUnavailable, OSError) as problem:
        found.append(error("kafka-away", f"Kafka cannot be used: {one_line(problem)}", todo))
    return found


def _wanted() -> set[str]:
    folder = files("migrations") / "clickhouse"
    return {path.name.removesuffix(".sql") for path in folder.iterdir() if path.name.endswith(".sql")}
