-- What invoices have billed of each event, by line. The rows of a calculation are written once, under an id of its own,
-- and count only where an invoice in the relational database names that id: a calculation that broke off or a draft
-- that was deleted leaves rows that nobody reads. An invoice's lines are sums of these rows, so that a line leads to
-- exactly the requests that it was made of, whatever became of those since; and what an event costs now, less what
-- stands here of it, is what the next invoice has to bill.
-- ORDER BY: a line's requests, in the order of time, are one stretch of the index.
CREATE TABLE IF NOT EXISTS invoiced_events
(
    tenant_id LowCardinality(String),
    calculation_id UUID,
    is_adjustment Bool,
    month UInt32 COMMENT 'YYYYMM of the usage in the time zone of the invoice',
    model_id LowCardinality(String),
    adapter_id LowCardinality(String) COMMENT 'empty: none',
    kind LowCardinality(String),
    unit_price_nanousd Int64 COMMENT '0 where it differs by request: minimums and discounts',
    timestamp DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    request_id String CODEC(ZSTD(1)),
    quantity Int64,
    amount_nanousd Int64
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(timestamp)
ORDER BY (tenant_id, calculation_id, is_adjustment, month, model_id, adapter_id, kind, unit_price_nanousd, timestamp, request_id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
