-- What the scripts share; it stands before each of them.
--
-- A scope (a tenant, a key, an end user) is one hash:
--   requests, tokens      of the last window, exactly as the buckets add up
--   <number>              a bucket, named by floor(time / width): 'requests tokens time-of-its-last-entry'
--   oldest, oldest_at     the oldest bucket and its last entry's time: it leaves the window as a whole, when the last
--                         entry does, so that no window sees too much; at most one width late
--   newest_at             the last entry's time
--   live                  requests under way
--   day:D, month:M        what the ledger said when it was asked ('seeded'); absent: nobody may assume zero
--   day+D, month+M        tokens and cost counted here since, reservations included
-- and what a gateway's incarnation holds of a tenant is one hash, request id -> record:
--   'live slot tokens cost day month scope=flags ...'   reserved; flags: 1 counted on the day, 2 on the month
--   'swept ...'                                          the same, given back because its gateway seemed dead
--   'done'                                               settled by `tell`; a second one does nothing
-- All times are microseconds of Redis' clock.
local NUM_BUCKETS = 60
local DAY_S = 86400
local LONG_S = 35 * DAY_S

local function now_us()
  local clock = redis.call('TIME')
  return clock[1] * 1000000 + clock[2]
end

local function parse_bucket(bucket)
  local requests, tokens, at = string.match(bucket, '^(%d+) (%d+) (%d+)$')
  return tonumber(requests), tonumber(tokens), tonumber(at)
end

local function format_bucket(requests, tokens, at)
  return string.format('%d %d %d', math.max(0, requests), math.max(0, tokens), at)
end

local function read_scope(key, slot, day, month)
  local f = redis.call('HMGET', key, 'requests', 'tokens', 'oldest', 'oldest_at', 'newest_at', 'live', slot,
    'day:' .. day, 'day+' .. day, 'month:' .. month, 'month+' .. month)
  return {
    key = key, slot = slot, requests = tonumber(f[1]) or 0, tokens = tonumber(f[2]) or 0,
    oldest = tonumber(f[3]), oldest_at = tonumber(f[4]), newest_at = tonumber(f[5]) or 0, live = tonumber(f[6]) or 0,
    bucket = f[7], seed_day = tonumber(f[8]), day = tonumber(f[9]) or 0,
    seed_month = tonumber(f[10]), month = tonumber(f[11]) or 0,
  }
end

-- The numbers that its buckets can have: all of them are within one window of each other.
local function bucket_numbers(scope)
  local numbers = {}
  for i = 0, NUM_BUCKETS + 2 do numbers[i + 1] = scope.oldest + i end
  return numbers
end

local function drop_old(scope, now, window_us)
  if not scope.oldest or scope.oldest_at + window_us > now then return end
  local numbers, gone = bucket_numbers(scope), {}
  local buckets = redis.call('HMGET', scope.key, unpack(numbers))
  scope.oldest, scope.oldest_at = nil, nil
  for i, bucket in ipairs(buckets) do
    if bucket then
      local requests, tokens, at = parse_bucket(bucket)
      if at + window_us > now then
        scope.oldest, scope.oldest_at = numbers[i], at
        break
      end
      scope.requests, scope.tokens = scope.requests - requests, scope.tokens - tokens
      gone[#gone + 1] = numbers[i]
      if numbers[i] == scope.slot then scope.bucket = false end
    end
  end
  if #gone > 0 then redis.call('HDEL', scope.key, unpack(gone)) end
  if scope.oldest then
    redis.call('HSET', scope.key, 'oldest', scope.oldest, 'oldest_at', scope.oldest_at,
      'requests', scope.requests, 'tokens', scope.tokens)
  else
    scope.requests, scope.tokens = 0, 0
    redis.call('HDEL', scope.key, 'oldest', 'oldest_at', 'requests', 'tokens')
  end
end

-- One more request of `tokens` at `at`, which lies in the bucket `scope.slot`.
local function count(scope, at, tokens)
  local requests_there, tokens_there, last = 0, 0, at
  if scope.bucket then
    requests_there, tokens_there, last = parse_bucket(scope.bucket)
    last = math.max(last, at)
  end
  scope.bucket = format_bucket(requests_there + 1, tokens_there + tokens, last)
  scope.requests, scope.tokens = scope.requests + 1, scope.tokens + tokens
  scope.newest_at = math.max(scope.newest_at, at)
  if not scope.oldest or scope.slot <= scope.oldest then scope.oldest, scope.oldest_at = scope.slot, last end
end

-- Write back what `count` changed, and `live`, `day` and `month`.
local function write_scope(scope, day, month, on_day, on_month)
  local fields = {'requests', scope.requests, 'tokens', scope.tokens, 'newest_at', scope.newest_at, 'live', scope.live}
  if scope.oldest then
    fields[9], fields[10], fields[11], fields[12] = 'oldest', scope.oldest, 'oldest_at', scope.oldest_at
  end
  if scope.bucket then fields[#fields + 1], fields[#fields + 2] = scope.slot, scope.bucket end
  if on_day then fields[#fields + 1], fields[#fields + 2] = 'day+' .. day, scope.day end
  if on_month then fields[#fields + 1], fields[#fields + 2] = 'month+' .. month, scope.month end
  redis.call('HSET', scope.key, unpack(fields))
end

-- Whoever holds the hash of what is under way must outlive whoever counts it, or a count would stay for good.
local function keep(held, scope, has_periods)
  redis.call('EXPIRE', scope.key, has_periods and LONG_S or DAY_S)
  redis.call('EXPIRE', held, LONG_S)
end

local RECORD = '^(%a+) (%d+) (%d+) (%d+) (%d+) (%d+) (.*)$'

-- Replace what `record` reserved in KEYS[2..] by what the request came to.
-- how: 'actual'; 'refund', as if it had never been; 'sweep', its gateway seems dead: the window keeps it, the rest does not
local function close_record(record, tokens, cost, how)
  local state, slot, reserved, reserved_cost, day, month, scopes = string.match(record, RECORD)
  local was_live = state == 'live'
  reserved, reserved_cost = tonumber(reserved), tonumber(reserved_cost)
  if how ~= 'actual' then tokens, cost = 0, 0 end
  local s = 1
  for flags in string.gmatch(scopes, '=(%d)') do
    s = s + 1
    flags = tonumber(flags)
    local f = redis.call('HMGET', KEYS[s], 'live', 'requests', 'tokens', slot, 'day+' .. day, 'month+' .. month)
    if f[1] then
      local fields = {'live', math.max(0, tonumber(f[1]) - (was_live and 1 or 0))}
      if f[4] and how ~= 'sweep' then
        local requests_there, tokens_there, at = parse_bucket(f[4])
        local fewer = how == 'refund' and 1 or 0
        fields[3], fields[4] = 'requests', math.max(0, tonumber(f[2]) - fewer)
        fields[5], fields[6] = 'tokens', math.max(0, tonumber(f[3]) + tokens - reserved)
        fields[7], fields[8] = slot, format_bucket(requests_there - fewer, tokens_there + tokens - reserved, at)
      end
      if flags % 2 == 1 then
        fields[#fields + 1] = 'day+' .. day
        fields[#fields + 1] = math.max(0, (tonumber(f[5]) or 0) + tokens - (was_live and reserved or 0))
      end
      if flags >= 2 then
        fields[#fields + 1] = 'month+' .. month
        fields[#fields + 1] = math.max(0, (tonumber(f[6]) or 0) + cost - (was_live and reserved_cost or 0))
      end
      redis.call('HSET', KEYS[s], unpack(fields))
    end
  end
end
