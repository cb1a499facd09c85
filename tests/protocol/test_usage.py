from datetime import UTC, datetime

import msgspec

from protocol.usage import SCHEMA_VERSION, StepsMs, UsageEvent

VERSION_1 = b"""{"request_id":"r1","client_request_id":null,"worker_id":"w","tenant_id":"t","key_id":"k","user_id":null,
"session_id":null,"model_version":"m@1","pool":"small","requested_model":"auto","route_reason":"simple",
"complexity":0.25,"adapter_id":null,"prompt_tokens":3,"cached_prompt_tokens":0,"completion_tokens":2,"ttft_ms":1.5,
"total_latency_ms":2.5,"queue_ms":0.0,"worker_compute_ms":1.0,"finish_reason":"stop","status":"ok","tier":"free",
"price_version":"p","cost_nanousd":5,"timestamp":"2026-03-04T05:06:07.891234Z","schema_version":1}"""


def test_an_event_of_version_1_is_read_as_one_without_what_version_2_added() -> None:
    event = msgspec.json.decode(VERSION_1, type=UsageEvent)
    assert (event.schema_version, event.cost_nanousd) == (1, 5)
    assert event.timestamp == datetime(2026, 3, 4, 5, 6, 7, 891234, tzinfo=UTC)
    assert (event.endpoint, event.error_code, event.num_attempts, event.decision) == (None, None, 0, None)
    assert (event.steps_ms, event.price_lines) == (StepsMs(), ())
    written = msgspec.structs.replace(event, schema_version=SCHEMA_VERSION)
    assert msgspec.json.decode(msgspec.json.encode(written), type=UsageEvent) == written
