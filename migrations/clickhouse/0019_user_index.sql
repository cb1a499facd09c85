-- One end user's requests among those of all tenants: a filter of 1 kB a granule tells where they are not, so that a
-- third of the column is read. A million events take 1.4 % more disk (docs/performance.md).
ALTER TABLE usage_events ADD INDEX IF NOT EXISTS by_user user_id TYPE bloom_filter(0.01) GRANULARITY 1;
ALTER TABLE usage_events MATERIALIZE INDEX by_user
