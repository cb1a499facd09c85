"""ClickHouse's rows against what the clients were told."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from benchmarks.exactly_once.clients import Told
from benchmarks.exactly_once.site import COMPLETION_NANOUSD, PROMPT_NANOUSD, Site
from gateway.metering.schema import connect_migrated
from tests.support.kafka_clients import topic_size

_SELECT = """SELECT request_id, tenant_id, status, prompt_tokens, completion_tokens, cost_nanousd
FROM usage_events FINAL"""
_SHOWN = 5


def prove(site: Site, finished: Mapping[str, Told]) -> dict[str, Any]:
    with connect_migrated(site.clickhouse_url) as client:
        rows = client.query(_SELECT).result_rows
        num_copies = client.query("SELECT count() FROM usage_events").result_rows[0][0]
    counts = Counter(row[0] for row in rows)
    by_id = {row[0]: row for row in rows}
    differences = [f"{request_id}: {count} rows" for request_id, count in counts.items() if count > 1]
    for request_id, told in finished.items():
        cost = told.prompt_tokens * PROMPT_NANOUSD + told.completion_tokens * COMPLETION_NANOUSD
        wanted = (request_id, told.tenant_id, "ok", told.prompt_tokens, told.completion_tokens, cost)
        if tuple(by_id.get(request_id, ())) != wanted:
            differences.append(f"{request_id}: told {wanted}, row {by_id.get(request_id)}")
    num_dead = topic_size(site.kafka_server, "tiergate.usage.dead-letters")
    if num_dead:
        differences.append(f"{num_dead} dead letters")
    return {
        "rows": len(rows),
        "rows_with_copies": num_copies,
        "topic_records": topic_size(site.kafka_server, "tiergate.usage"),
        "rows_of_unfinished": dict(Counter(row[2] for row in rows if row[0] not in finished)),
        "tokens": sum(told.prompt_tokens + told.completion_tokens for told in finished.values()),
        "tokens_in_rows": sum(row[3] + row[4] for row in rows if row[0] in finished),
        "cost_nanousd": sum(row[5] for row in rows if row[0] in finished),
        "differences": len(differences),
        "shown": differences[:_SHOWN],
    }
