-- Check all limits of all scopes and reserve everything or nothing. One call, so no race can exceed a limit.
--
-- KEYS 1 held by this gateway  2.. scopes, the tenant first
-- ARGV 1 window_us  2 day  3 month  4 the record's scopes ('tenant=3 ...')
--      for each scope: requests, tokens, live, tokens a day, cost a month ('' = no limit)
--      then: request id, tokens, cost
--      and, once the ledger was asked: the first day and the first month to keep, for each scope its day and its month
-- Answer: 'verdict scope retry_us requests tokens reset_us'; verdict: ok, load (ask the ledger), or the limit that
-- binds, with the number of its scope (from 1) and when to come back. The rest is the tenant's standing.
local held, num_scopes = KEYS[1], #KEYS - 1
local window_us, day, month = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local day_field, month_field = 'day:' .. day, 'month:' .. month
local past = 4 + 5 * num_scopes
local id, need, cost = ARGV[past + 1], tonumber(ARGV[past + 2]), tonumber(ARGV[past + 3])
local seeds = past + 5
local has_seeds = #ARGV >= seeds
local now = now_us()
local slot = math.floor(now * NUM_BUCKETS / window_us)
local scopes = {}

local function drop_past_periods(key)
  for _, field in ipairs(redis.call('HKEYS', key)) do
    local period, digits = string.match(field, '^(%a+):(%d+)$')
    local first = (period == 'day' and ARGV[past + 4]) or (period == 'month' and ARGV[past + 5])
    if first and digits < first then redis.call('HDEL', key, field) end
  end
end

-- What the ledger says, if it was asked.
local function seed(scope, field, counted, value)
  value = has_seeds and tonumber(value)
  if not value then return nil end
  redis.call('HSET', scope.key, field, format_period(counted, value))
  redis.call('EXPIRE', scope.key, kept_s(scope.key, true))
  drop_past_periods(scope.key)
  return value
end

local function answer(verdict, number, retry_us)
  local tenant = scopes[1]
  local reset_us = tenant.oldest >= 0 and math.max(0, tenant.newest_at + window_us - now) or 0
  return string.format('%s %d %d %d %d %d', verdict, number, retry_us, tenant.requests, tenant.tokens, reset_us)
end

-- When enough of the oldest buckets have left for `excess` requests (part 1) or tokens (part 2) to be free.
local function frees_in(scope, excess, part)
  if scope.oldest < 0 then return window_us end
  -- What a flood asks all the time has the short answer.
  if part == 1 and excess == 1 then return math.max(1, scope.oldest_at + window_us - now) end
  for _, bucket in ipairs(redis.call('HMGET', scope.key, unpack(bucket_numbers(scope)))) do
    if bucket then
      local requests, tokens, at = parse_bucket(bucket)
      excess = excess - (part == 1 and requests or tokens)
      if excess <= 0 then return math.max(1, at + window_us - now) end
    end
  end
  return window_us
end

local lacks = false
for s = 1, num_scopes do
  local scope, at = read_scope(KEYS[s + 1], slot, day_field, month_field), 4 + 5 * (s - 1)
  scope.max_requests, scope.max_tokens, scope.max_live = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  scope.max_day, scope.max_month = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
  scopes[s] = scope
  if scope.max_day and not scope.seed_day then
    scope.seed_day = seed(scope, day_field, scope.day, ARGV[seeds + 2 * s - 1])
    lacks = lacks or not scope.seed_day
  end
  if scope.max_month and not scope.seed_month then
    scope.seed_month = seed(scope, month_field, scope.month, ARGV[seeds + 2 * s])
    lacks = lacks or not scope.seed_month
  end
end

for s, scope in ipairs(scopes) do drop_old(scope, now, window_us) end
for s, scope in ipairs(scopes) do
  -- Where the ledger is still to be asked, the window is looked at first: who floods is not to flood the ledger.
  if scope.max_day and not lacks and scope.seed_day + scope.day + need > scope.max_day then
    return answer('tokens_per_day', s, 0)
  end
  if scope.max_month and not lacks and scope.seed_month + scope.month + cost > scope.max_month then
    return answer('budget', s, 0)
  end
  if scope.max_requests and scope.requests + 1 > scope.max_requests then
    return answer('requests_per_minute', s, frees_in(scope, scope.requests + 1 - scope.max_requests, 1))
  end
  if scope.max_tokens and scope.tokens + need > scope.max_tokens then
    return answer('tokens_per_minute', s, frees_in(scope, scope.tokens + need - scope.max_tokens, 2))
  end
  if scope.max_live and scope.live + 1 > scope.max_live then return answer('concurrency', s, 1000000) end
end
if lacks then return 'load 0 0 0 0 0' end

local record = string.format('live %d %d %d %s %s %s', slot, need, cost, day, month, ARGV[4])
-- Settled before it came to us, on another connection: nothing is left to reserve.
if redis.call('HSETNX', held, id, record) == 0 then return answer('ok', 0, 0) end
for s, scope in ipairs(scopes) do
  local is_new = not scope.bucket
  count(scope, now, need)
  scope.live = scope.live + 1
  scope.day, scope.month = scope.day + need, scope.month + cost
  write_scope(scope, day_field, month_field, scope.max_day, scope.max_month)
  if is_new then keep(held, scope, scope.max_day or scope.max_month) end
end
return answer('ok', 0, 0)
