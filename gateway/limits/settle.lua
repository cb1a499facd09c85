-- Replace a request's reservation by what it came to. A second time finds nothing to replace.
-- KEYS 1 held by the request's gateway  2.. scopes, as in admit.lua   ARGV 1 request id  2 tokens  3 cost
--      4 'actual', 'refund', or 'sweep' (see window.lua)
local record = redis.call('HGET', KEYS[1], ARGV[1])
if not record then return 0 end
if record == 'done' then
  -- Its gateway asks for a refund only of what it has forgotten: then the mark has done its work.
  if ARGV[4] == 'refund' then redis.call('HDEL', KEYS[1], ARGV[1]) end
  return 0
end
local is_sweep = ARGV[4] == 'sweep'
if is_sweep and string.sub(record, 1, 5) == 'swept' then return 0 end
close_record(record, tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4])
if is_sweep then
  redis.call('HSET', KEYS[1], ARGV[1], 'swept' .. string.sub(record, 5))
else
  redis.call('HDEL', KEYS[1], ARGV[1])
end
return 1
