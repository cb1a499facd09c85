-- What is held for requests that are older than a bound and have no lease: their gateway died before it settled.
-- KEYS 1 leases  2 held   ARGV 1 min_age_us   Answer: request id, record, ...
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local orphans = {}
local all = redis.call('HGETALL', KEYS[2])
for i = 1, #all, 2 do
  local at = tonumber(all[i + 1]:match('^%d+ %d+ (%d+)'))
  local lease = tonumber(redis.call('ZSCORE', KEYS[1], all[i]) or 0)
  if now - at > tonumber(ARGV[1]) and lease <= now then
    table.insert(orphans, all[i])
    table.insert(orphans, all[i + 1])
  end
end
return orphans
