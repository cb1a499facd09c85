-- Schema version 2 of the usage event: where it came in, how it failed, the steps' times, why it went where it went,
-- and what its cost is made of. Rows of version 1 have none of these.
--
-- Why the sorting key stays (tenant_id, toStartOfHour(timestamp), request_id):
--   tenant_id   first, since nearly every question is one tenant's: an invoice, a key's page, `GET /v1/usage`. Those
--               of all tenants read rollups. Few distinct values, so that the columns behind it compress well.
--   the hour    second, since every question has a time range, and rollups are made an hour at a time. An hour and not
--               the timestamp: the key must be the same in every copy of an event and as short as its use, and within
--               an hour a granule (8,192 rows) is read whole anyway.
--   request_id  last, the event itself: what ReplacingMergeTree deduplicates by. A UUIDv7, hence in the order of time,
--               so that neighbours share their prefix and compress.
-- Why partitions are months of the event's time: copies of an event always fall into one partition, so that FINAL need
-- not look across them; a TTL drops a whole partition's parts; an invoice reads one; and a late event opens no more than
-- the one part of its month. Days would make 30 times as many parts to merge, a tenant in the partition key one for each.
ALTER TABLE usage_events
    ADD COLUMN IF NOT EXISTS endpoint LowCardinality(Nullable(String)),
    ADD COLUMN IF NOT EXISTS error_code LowCardinality(Nullable(String)),
    ADD COLUMN IF NOT EXISTS error_message Nullable(String),
    ADD COLUMN IF NOT EXISTS num_attempts UInt16,
    ADD COLUMN IF NOT EXISTS steps_ms Tuple(
        authenticate Nullable(Float32),
        admit Nullable(Float32),
        queue Nullable(Float32),
        first_token Nullable(Float32),
        end Nullable(Float32)) COMMENT 'when each step was over, since the arrival',
    ADD COLUMN IF NOT EXISTS decision Nullable(String) COMMENT 'JSON' CODEC(ZSTD(3)),
    ADD COLUMN IF NOT EXISTS price_lines Array(Tuple(
        kind LowCardinality(String),
        quantity Int64,
        unit_price_nanousd Int64,
        amount_nanousd Int64)) COMMENT 'amounts add up to cost_nanousd'
