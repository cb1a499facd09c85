-- Hours and days of usage, recomputed whole from deduplicated events (docs/adr/0021-rollups-of-whole-hours.md). A row
-- is replaced by one of a higher version, and a group that no longer exists by one of zeros, so that recomputing again,
-- at once from two consumers or after a crash changes nothing.
--
-- ORDER BY: tenant_id and start as in usage_events, then every other column that `group_by` may name, since together
-- they are a row's identity. `user_id` is not among them: end users are as many as requests in the worst case, and
-- questions by user read events.
-- PARTITION BY: months, as the events, so that a TTL drops whole parts and a row's versions meet in one partition.
ALTER TABLE usage_events
    ADD COLUMN IF NOT EXISTS inserted_at DateTime64(3, 'UTC') DEFAULT toDateTime64(0, 3, 'UTC')
        COMMENT 'when a consumer sent the row: finds the hours that have to be recomputed';
ALTER TABLE usage_events ADD INDEX IF NOT EXISTS inserted_at inserted_at TYPE minmax GRANULARITY 1;
CREATE TABLE IF NOT EXISTS usage_hours
(
    tenant_id LowCardinality(String),
    start DateTime('UTC'),
    key_id LowCardinality(String),
    model_version LowCardinality(String),
    pool LowCardinality(String),
    tier LowCardinality(String),
    adapter_id LowCardinality(String) COMMENT 'empty: none',
    requests UInt64,
    errors UInt64 COMMENT 'error and lost',
    prompt_tokens UInt64,
    cached_prompt_tokens UInt64,
    completion_tokens UInt64,
    cost_nanousd Int64 COMMENT '1e-9 dollars',
    worker_compute_ms Float64,
    ttft_ms_sum Float64,
    num_ttft UInt64,
    total_latency_ms_sum Float64,
    ttft_ms_state AggregateFunction(quantilesDD(0.02, 0.5, 0.95, 0.99), Nullable(Float64)),
    tpot_ms_state AggregateFunction(quantilesDD(0.02, 0.5, 0.95, 0.99), Nullable(Float64)),
    total_latency_ms_state AggregateFunction(quantilesDD(0.02, 0.5, 0.95, 0.99), Nullable(Float64)),
    version UInt64 COMMENT 'nanoseconds: when the recomputation began'
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(start)
ORDER BY (tenant_id, start, key_id, model_version, pool, tier, adapter_id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
CREATE TABLE IF NOT EXISTS usage_days AS usage_hours;
CREATE TABLE IF NOT EXISTS usage_rollup_sweeps
(
    name String,
    seen_until DateTime64(3, 'UTC') COMMENT 'the largest inserted_at whose hour was recomputed',
    swept_at DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree(swept_at)
ORDER BY name
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
