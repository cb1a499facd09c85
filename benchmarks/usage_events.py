"""Usage events as of a busy platform, made by ClickHouse itself.

A month of them: tenants of very different sizes with two keys each, five model versions, adapters, end users; 1 in 200
failed, and 1 in 50 was sent twice.
"""

import sys
from datetime import datetime, timedelta

from clickhouse_connect.driver.client import Client

from gateway.metering.store import EVENT_FIELDS

DAYS = 30
MAKING_DEADLINE_S = 600
"""For each chunk, on a machine that does other work."""
CHUNK = 250_000
_TENANT_PREFIX = "00000000-0000-7000-8000-"
_EVENTS = """WITH lower(hex(sipHash128(n))) AS drawn,
fromUnixTimestamp64Micro({start_us:Int64} + n * {step_us:Int64}, 'UTC') AS at,
substring(leftPad(lower(hex(toUnixTimestamp64Milli(at))), 16, '0'), 5) AS made_ms
SELECT concat(substring(made_ms, 1, 8), '-', substring(made_ms, 9), '-7', substring(drawn, 1, 3), '-8',
substring(drawn, 4, 3), '-', substring(drawn, 7, 12)) AS request_id, NULL, concat('worker-', toString(n % 8)), tenant,
concat('key-', tenant, '-', toString(n % 2)), concat('user-', toString(cityHash64(n, 1) % 5000)), NULL,
concat('model-', toString(model), '@abcdef'),
if(model < 3, 'small', 'large'), 'auto', if(model < 3, 'simple', 'complex'), (n % 1000) / 1000,
if(tenant_number % 5 = 0, concat('adapter-', toString(tenant_number)), NULL), prompt_tokens, prompt_tokens DIV 4,
completion_tokens, ttft, ttft + completion_tokens * 12.5, ttft / 4, completion_tokens * 10.5, 'stop',
if(n % 200 = 0, 'error', 'ok'), ['free', 'pro', 'enterprise'][tenant_number % 3 + 1], '0190c3a2-aaaa-7000',
prompt_tokens * 100 + completion_tokens * 400, at, 2, 1, '/v1/chat/completions',
if(n % 200 = 0, 'upstream_failed', NULL), if(n % 200 = 0, 'the worker broke off', NULL), 1,
(0.1, 0.6, ttft / 4, ttft, ttft + completion_tokens * 12.5),
concat('{"reason":"simple","score":0.', toString(n % 1000), ',"threshold":0.5,"pool":"small","tried":["worker-1"]}'),
[('input', prompt_tokens, 100, prompt_tokens * 100), ('output', completion_tokens, 400, completion_tokens * 400)],
NULL, false, at + 1 FROM (
    SELECT n, toUInt32(pow(cityHash64(n) % 1000000 / 1000000, 3) * {tenants:UInt32}) AS tenant_number,
    concat({tenant_prefix:String}, leftPad(toString(tenant_number), 12, '0')) AS tenant, cityHash64(n, 2) % 5 AS model,
    20 + cityHash64(n, 3) % 2000 AS prompt_tokens, 1 + cityHash64(n, 4) % 400 AS completion_tokens,
    20 + exp(cityHash64(n, 5) % 1000 / 150) AS ttft
    FROM (SELECT {first:UInt64} + arrayJoin(range({count:UInt64})) AS n) WHERE n % {every:UInt64} = 0)
SETTINGS max_partitions_per_insert_block = 0"""
_LATER = EVENT_FIELDS[EVENT_FIELDS.index("schema_version") + 1 :]


def tenant_id_of(number: int) -> str:
    """From 0, the largest."""
    return f"{_TENANT_PREFIX}{number:012}"


def make_events(client: Client, num_events: int, num_tenants: int, *, until: datetime) -> None:
    """The last one just before `until`."""
    columns = ", ".join((*EVENT_FIELDS[: EVENT_FIELDS.index("schema_version") + 1], "version", *_LATER, "inserted_at"))
    sql = f"INSERT INTO usage_events ({columns})\n{_EVENTS}"
    start = until - timedelta(days=DAYS)
    step_us = int(timedelta(days=DAYS) / timedelta(microseconds=1)) // num_events
    parameters = {
        "start_us": round(start.timestamp() * 1e6),
        "step_us": step_us,
        "tenants": num_tenants,
        "tenant_prefix": _TENANT_PREFIX,
    }
    for every in (1, 50):
        for first in range(0, num_events, CHUNK):
            part = parameters | {"first": first, "count": min(CHUNK, num_events - first), "every": every}
            client.command(sql, parameters=part)
            print(f"\r{every}: {first + part['count']:,} events", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
