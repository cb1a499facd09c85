-- The answer came from the cache: no worker computed it.
ALTER TABLE usage_events ADD COLUMN IF NOT EXISTS cached_answer Bool
