-- One row for each request that passed admission; protocol/usage.py defines the fields.
-- Delivery is at least once: rows with the same (tenant_id, request_id) are one event, of which the highest version
-- counts. The hour stands in the sorting key so that a tenant's time range is one stretch of the index; it is part of
-- the event's immutable timestamp, so it does not weaken the deduplication, and neither does the partition.
-- Granules are small, because an hour of all tenants costs at least one of each tenant.
CREATE TABLE IF NOT EXISTS usage_events
(
    request_id String,
    client_request_id Nullable(String),
    worker_id Nullable(String),
    tenant_id LowCardinality(String),
    key_id LowCardinality(String),
    user_id Nullable(String),
    session_id Nullable(String),
    model_version LowCardinality(String),
    pool LowCardinality(String),
    requested_model LowCardinality(String),
    route_reason LowCardinality(String),
    complexity Float64,
    adapter_id LowCardinality(Nullable(String)),
    prompt_tokens UInt64,
    cached_prompt_tokens UInt64,
    completion_tokens UInt64,
    ttft_ms Nullable(Float64),
    total_latency_ms Float64,
    queue_ms Float64,
    worker_compute_ms Float64,
    finish_reason LowCardinality(Nullable(String)),
    status LowCardinality(String),
    tier LowCardinality(String),
    price_version LowCardinality(String),
    cost_nanousd Int64 COMMENT '1e-9 dollars',
    timestamp DateTime64(6, 'UTC') COMMENT 'arrival of the request; never changes',
    schema_version UInt16,
    version UInt8 COMMENT '0: lost, a gateway died while the request was open; 1: the gateway''s own verdict; 2: told to the client as failed'
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(timestamp)
ORDER BY (tenant_id, toStartOfHour(timestamp), request_id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, index_granularity = 1024
