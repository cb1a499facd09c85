-- What the scripts share; it stands before each of them.
--
-- A scope (a tenant, a key, an end user) is one hash. Each of its fields is packed (struct, doubles), since a field costs
-- a call about a microsecond, and so does reading or writing a number as text:
--   state       requests, tokens: the sums of the window as its buckets add up; live: requests under way; oldest,
--               oldest_at: the oldest bucket (-1: none) and its last entry's time; newest_at: the last entry's time
--   <number>    a bucket, named by floor(time / width): requests, tokens, its last entry's time. It leaves the window as
--               a whole, when its last entry does, so that no window sees too much; at most one width late.
--   day:D       counted: tokens counted here, reservations included; seed: what the ledger said when it was asked
--   month:M     (-1: it was not; then nobody may assume zero). The month has the same for cost.
-- What a gateway's incarnation holds of a tenant is one hash, request id -> record:
--   'live slot tokens cost day month scope=flags ...'   reserved; flags: 1 counted on the day, 2 on the month
--   'swept ...'                                          the same, given back because its gateway seemed dead
--   'done'                                               settled by `tell`; a second one does nothing
-- All times are microseconds of Redis' clock.
local NUM_BUCKETS = 60
local DAY_S = 86400
local LONG_S = 35 * DAY_S
local USER_S = 1800

local function now_us()
  local clock = redis.call('TIME')
  return clock[1] * 1000000 + clock[2]
end

local function parse_bucket(bucket) return struct.unpack('ddd', bucket) end

local function format_bucket(requests, tokens, at)
  return struct.pack('ddd', requests > 0 and requests or 0, tokens > 0 and tokens or 0, at)
end

local function parse_period(field)
  if not field then return 0, nil end
  local counted, seed = struct.unpack('dd', field)
  return counted, seed >= 0 and seed or nil
end

local function format_period(counted, seed)
  return struct.pack('dd', counted > 0 and counted or 0, seed or -1)
end

local function format_state(scope)
  local requests, tokens, live = scope.requests, scope.tokens, scope.live
  return struct.pack('dddddd', requests > 0 and requests or 0, tokens > 0 and tokens or 0, live > 0 and live or 0,
    scope.oldest, scope.oldest_at, scope.newest_at)
end

local function read_scope(key, slot, day, month)
  local f = redis.call('HMGET', key, 'state', slot, day, month)
  local counted_day, seed_day = parse_period(f[3])
  local counted_month, seed_month = parse_period(f[4])
  local requests, tokens, live, oldest, oldest_at, newest_at = 0, 0, 0, -1, 0, 0
  if f[1] then requests, tokens, live, oldest, oldest_at, newest_at = struct.unpack('dddddd', f[1]) end
  return {
    key = key, slot = slot, is_new = not f[1], bucket = f[2],
    requests = requests, tokens = tokens, live = live, oldest = oldest, oldest_at = oldest_at, newest_at = newest_at,
    day = counted_day, seed_day = seed_day, month = counted_month, seed_month = seed_month,
  }
end

-- The numbers that its buckets can have: all of them are within one window of each other.
local function bucket_numbers(scope)
  local numbers = {}
  for i = 0, NUM_BUCKETS + 2 do numbers[i + 1] = scope.oldest + i end
  return numbers
end

local function drop_old(scope, now, window_us)
  if scope.oldest < 0 or scope.oldest_at + window_us > now then return end
  local numbers, gone = bucket_numbers(scope), {}
  local buckets = redis.call('HMGET', scope.key, unpack(numbers))
  scope.oldest, scope.oldest_at = -1, 0
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
  if scope.oldest < 0 then scope.requests, scope.tokens = 0, 0 end
  if #gone > 0 then redis.call('HDEL', scope.key, unpack(gone)) end
  redis.call('HSET', scope.key, 'state', format_state(scope))
end

-- One more request of `tokens` at `at`, which lies in the bucket `scope.slot`.
local function count(scope, at, tokens)
  local requests_there, tokens_there, last = 0, 0, at
  if scope.bucket then
    requests_there, tokens_there, last = parse_bucket(scope.bucket)
    if at > last then last = at end
  end
  scope.bucket = format_bucket(requests_there + 1, tokens_there + tokens, last)
  scope.requests, scope.tokens = scope.requests + 1, scope.tokens + tokens
  if at > scope.newest_at then scope.newest_at = at end
  if scope.oldest < 0 or scope.slot <= scope.oldest then scope.oldest, scope.oldest_at = scope.slot, last end
end

-- Write back what `count` changed, `live`, and where asked for the day and the month.
local function write_scope(scope, day, month, on_day, on_month)
  local fields, n = {'state', format_state(scope)}, 2
  if scope.bucket then fields[3], fields[4], n = scope.slot, scope.bucket, 4 end
  if on_day then fields[n + 1], fields[n + 2], n = day, format_period(scope.day, scope.seed_day), n + 2 end
  if on_month then fields[n + 1], fields[n + 2], n = month, format_period(scope.month, scope.seed_month), n + 2 end
  redis.call('HSET', scope.key, unpack(fields))
end

-- End users are named by clients, and there is no end to names: theirs are forgotten soon, and day and month asked of the
-- ledger again. Longer than any request takes.
local function kept_s(key, has_periods)
  if string.find(key, ':limits:user:', 1, true) then return USER_S end
  return has_periods and LONG_S or DAY_S
end

-- Whoever holds the hash of what is under way must outlive whoever counts it, or a count would stay for good.
local function keep(held, scope, has_periods)
  redis.call('EXPIRE', scope.key, kept_s(scope.key, has_periods))
  redis.call('EXPIRE', held, LONG_S)
end

local RECORD = '^(%a+) (%d+) (%d+) (%d+) (%d+) (%d+) (.*)$'

-- Replace what `record` reserved in KEYS[2..] by what the request came to.
-- how: 'actual'; 'refund', as if it had never been; 'sweep', its gateway seems dead: the window keeps it, the rest does not
local function close_record(record, tokens, cost, how)
  local state, slot, reserved, reserved_cost, day, month, scopes = string.match(record, RECORD)
  local was_live = state == 'live'
  day, month = 'day:' .. day, 'month:' .. month
  reserved, reserved_cost = tonumber(reserved), tonumber(reserved_cost)
  if how ~= 'actual' then tokens, cost = 0, 0 end
  local s = 1
  for flags in string.gmatch(scopes, '=(%d)') do
    s = s + 1
    flags = tonumber(flags)
    local scope = read_scope(KEYS[s], slot, day, month)
    if not scope.is_new then
      if was_live then
        scope.live = scope.live - 1
        scope.day, scope.month = scope.day - reserved, scope.month - reserved_cost
      end
      scope.day, scope.month = scope.day + tokens, scope.month + cost
      if how == 'sweep' then
        scope.bucket = false
      elseif scope.bucket then
        local requests_there, tokens_there, at = parse_bucket(scope.bucket)
        local fewer = how == 'refund' and 1 or 0
        scope.requests, scope.tokens = scope.requests - fewer, scope.tokens + tokens - reserved
        scope.bucket = format_bucket(requests_there - fewer, tokens_there + tokens - reserved, at)
      end
      write_scope(scope, day, month, flags % 2 == 1, flags >= 2)
    end
  end
end
