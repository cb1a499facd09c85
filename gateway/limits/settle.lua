-- Replace a request's reservation by what it came to. Idempotent: the second call finds nothing to replace.
--
-- KEYS as in admit.lua
-- ARGV 1 request id  2 tokens  3 cost  4 'refund' (as if it had never been), 'actual', or 'late': the request was
--      admitted without Redis, so that nothing is held for it, and counts from here on
local window, tokens, leases, held, day, month = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local id, actual, cost, how = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]

redis.call('ZREM', leases, id)
local reserved = tonumber(redis.call('HGET', tokens, id))
if reserved then
  redis.call('HINCRBY', tokens, 'sum', string.format('%d', actual - reserved))
  if how == 'refund' then
    redis.call('HDEL', tokens, id)
    redis.call('ZREM', window, id)
  else
    redis.call('HSET', tokens, id, string.format('%d', actual))
  end
end

local record = redis.call('HGET', held, id)
local on_day, on_month = 0, 0
if record then
  redis.call('HDEL', held, id)
  on_day, on_month = record:match('^(%d+) (%d+)')
  on_day, on_month = tonumber(on_day), tonumber(on_month)
elseif how ~= 'late' then
  return 0
end
-- A key that is gone will be loaded from the ledger, which knows this request.
if redis.call('EXISTS', day) == 1 then redis.call('INCRBY', day, string.format('%d', actual - on_day)) end
if redis.call('EXISTS', month) == 1 then redis.call('INCRBY', month, string.format('%d', cost - on_month)) end
return 1
