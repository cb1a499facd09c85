-- Check every limit of a tenant and reserve all of them, or nothing. One call, so no race can exceed a limit.
--
-- KEYS 1 window  zset  request id -> admitted at (us)     requests and tokens of the last minute, exactly
--      2 tokens  hash  request id -> tokens, 'sum' -> sum of all
--      3 leases  zset  request id -> expires at (us)      requests under way
--      4 held    hash  request id -> reserved on 5 and 6
--      5 day     tokens of this day, reservations included
--      6 month   cost of this month (1e-9 dollars), reservations included
-- ARGV 1 request id  2 tokens  3 cost  4 window_us  5 lease_us
--      6..10 limits: requests, tokens, concurrency, tokens a day, cost a month ('' = none)
--      11, 12 what day and month start from when their key is missing ('' = not known: answer 'load')
--      13 what to remember in held besides (the names of day and month)
-- Answer: verdict, retry after (us), requests in the window, their reset (us), tokens in the window, requests under way,
--         tokens of the day, cost of the month
local window, tokens, leases, held, day, month = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local id, need, cost = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local window_us, lease_us = tonumber(ARGV[4]), tonumber(ARGV[5])
local max_requests, max_tokens, max_leases = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local max_day, max_month = tonumber(ARGV[9]), tonumber(ARGV[10])
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

local function missing(limit, key, seed)
  if limit == nil or redis.call('EXISTS', key) == 1 then return false end
  if seed == '' then return true end
  redis.call('SET', key, seed)
  return false
end
local lacks_day, lacks_month = missing(max_day, day, ARGV[11]), missing(max_month, month, ARGV[12])
if lacks_day or lacks_month then return {'load', 0, 0, 0, 0, 0, 0, 0} end

-- What has left the window gives its tokens back.
for _, old in ipairs(redis.call('ZRANGEBYSCORE', window, '-inf', now - window_us)) do
  redis.call('HINCRBY', tokens, 'sum', -(tonumber(redis.call('HGET', tokens, old)) or 0))
  redis.call('HDEL', tokens, old)
  redis.call('ZREM', window, old)
end
redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)

local num_requests = redis.call('ZCARD', window)
local num_tokens = tonumber(redis.call('HGET', tokens, 'sum')) or 0
local num_leases = redis.call('ZCARD', leases)
local used_day, used_month = tonumber(redis.call('GET', day)) or 0, tonumber(redis.call('GET', month)) or 0

local function answer(verdict, retry_us)
  local newest = redis.call('ZRANGE', window, -1, -1, 'WITHSCORES')[2]
  local reset_us = newest and (newest + window_us - now) or 0
  return {verdict, retry_us, num_requests, reset_us, num_tokens, num_leases, used_day, used_month}
end

-- When enough of the oldest entries have left for `excess` tokens to be free.
local function tokens_free_in(excess)
  local start = 0
  while excess > 0 do
    local page = redis.call('ZRANGE', window, start, start + 99, 'WITHSCORES')
    if #page == 0 then break end
    for i = 1, #page, 2 do
      excess = excess - (tonumber(redis.call('HGET', tokens, page[i])) or 0)
      if excess <= 0 then return page[i + 1] + window_us - now end
    end
    start = start + 100
  end
  return window_us
end

-- The answer to the first try was lost on the way: it is reserved already.
if redis.call('ZSCORE', window, id) then return answer('ok', 0) end

if max_day and used_day + need > max_day then return answer('tokens_per_day', 0) end
if max_month and used_month + cost > max_month then return answer('budget', 0) end
if max_requests and num_requests + 1 > max_requests then
  local i = num_requests - max_requests
  local blocking = redis.call('ZRANGE', window, i, i, 'WITHSCORES')[2]
  return answer('requests_per_minute', blocking and (blocking + window_us - now) or window_us)
end
if max_tokens and num_tokens + need > max_tokens then
  return answer('tokens_per_minute', tokens_free_in(num_tokens + need - max_tokens))
end
if max_leases and num_leases + 1 > max_leases then return answer('concurrency', 1000000) end

redis.call('ZADD', window, now, id)
redis.call('HSET', tokens, id, string.format('%d', need))
redis.call('HINCRBY', tokens, 'sum', string.format('%d', need))
redis.call('ZADD', leases, now + lease_us, id)
local ttl_ms = math.ceil(window_us / 1000) + 1000
redis.call('PEXPIRE', window, ttl_ms)
redis.call('PEXPIRE', tokens, ttl_ms)
redis.call('PEXPIRE', leases, math.ceil(lease_us / 1000) + 1000)
num_requests, num_tokens, num_leases = num_requests + 1, num_tokens + need, num_leases + 1
if max_day then used_day = redis.call('INCRBY', day, string.format('%d', need)) end
if max_month then used_month = redis.call('INCRBY', month, string.format('%d', cost)) end
if max_day or max_month then
  local on_day, on_month = max_day and need or 0, max_month and cost or 0
  redis.call('HSET', held, id, string.format('%d %d %d %s', on_day, on_month, now, ARGV[13]))
  redis.call('EXPIRE', day, 172800)
  redis.call('EXPIRE', month, 2764800)
end
return answer('ok', 0)
