-- Close a request that its gateway does not close itself, because it seems dead or has forgotten it. See `batch.lua`
-- for all other requests.
-- KEYS 1 held by the request's gateway  2.. its scopes
-- ARGV 1 request id  2 'actual', 'refund' or 'sweep' (see window.lua)  3 tokens and  4 cost, if 'actual'
local record = redis.call('HGET', KEYS[1], ARGV[1])
if not record then return 0 end
if record == 'done' then
  -- A refund is asked only for a forgotten request; the mark is then obsolete.
  if ARGV[2] == 'refund' then redis.call('HDEL', KEYS[1], ARGV[1]) end
  return 0
end
local is_sweep = ARGV[2] == 'sweep'
if is_sweep and string.sub(record, 1, 5) == 'swept' then return 0 end
local scopes = {}
close_record(scopes, record, tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[2])
for _, scope in ipairs(scopes) do save(scope) end
if is_sweep then
  redis.call('HSET', KEYS[1], ARGV[1], 'swept' .. string.sub(record, 5))
else
  redis.call('HDEL', KEYS[1], ARGV[1])
end
return 1
