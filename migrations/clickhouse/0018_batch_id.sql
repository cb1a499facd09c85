-- The batch that a request was a line of.
ALTER TABLE usage_events ADD COLUMN IF NOT EXISTS batch_id Nullable(String)
