-- What gateways count beside events. A row is a count so far of one gateway's incarnation, and the highest counts, so
-- that it may arrive any number of times and in any order.
--
-- ORDER BY: tenant and time first, as questions are asked; the rest is a count's identity. PARTITION BY: months, so that
-- a TTL drops whole parts.
CREATE TABLE IF NOT EXISTS refusals
(
    tenant_id LowCardinality(String) COMMENT 'empty: the key was not known',
    minute DateTime('UTC'),
    key_id LowCardinality(String),
    limit LowCardinality(String) COMMENT 'the error''s code',
    status UInt16,
    gateway LowCardinality(String) COMMENT 'an incarnation',
    count UInt64
)
ENGINE = ReplacingMergeTree(count)
PARTITION BY toYYYYMM(minute)
ORDER BY (tenant_id, minute, key_id, limit, status, gateway)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
CREATE TABLE IF NOT EXISTS admissions
(
    tenant_id LowCardinality(String),
    hour DateTime('UTC') COMMENT 'of the arrival',
    gateway LowCardinality(String),
    num_admitted UInt64,
    num_closed UInt64 COMMENT 'durable in the outbox as an event',
    version UInt64 COMMENT 'their sum: both only grow'
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(hour)
ORDER BY (tenant_id, hour, gateway)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
