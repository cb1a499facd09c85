-- The code that all scripts share; it is prepended to each of them.
--
-- A scope (a tenant, a key, an end user) is one hash. Each field holds several packed doubles (struct), because each
-- field costs a call about a microsecond, and so does reading or writing a number as text. A script opens a scope,
-- changes its copy, and saves it once, however many requests it was called for. All local functions are made anew for
-- each call of a script, so there are few of them. The fields:
--   state       requests, tokens: the sums of the window as its buckets add up; live: requests under way; oldest,
--               oldest_at: the oldest bucket (-1: none) and its last entry's time; newest_at: the last entry's time
--   <number>    a bucket, named by floor(time / width): requests, tokens, its last entry's time. It leaves the window
--               as a whole, when its last entry does, so no window admits too much; this is at most one width late.
--   day:D       counted: tokens counted here, including reservations; seed: the ledger's figure when it was read
--   month:M     (-1: never read; zero must not be assumed then). The month has the same for cost.
--   raised:...  by how much `raise` raised a day's or month's figure, less what `tell` has accounted for since, and when
--               the ledger was read for it
-- The requests that a gateway's incarnation holds for a tenant are one hash, request id -> record:
--   'live slot tokens cost day month scope=flags ...'   reserved; flags: 1 counted on the day, 2 on the month
--   'swept ...'                                          the same, released because its gateway seemed dead
--   'done'                                               settled by `tell`; a second one does nothing
-- All times are microseconds on Redis's clock.
local NUM_BUCKETS = 60
local SET_BACK_US = 2000000
local DAY_S = 86400
local LONG_S = 35 * DAY_S
local USER_S = 1800
-- The value of a day or month that has no field. Never changed.
local NONE = {0, -1}

local function now_us()
  local clock = redis.call('TIME')
  return clock[1] * 1000000 + clock[2]
end

-- The state and three fields of a scope: the bucket `slot`, and a day and a month.
local function open_scope(key, slot, day, month)
  local f = redis.call('HMGET', key, 'state', slot, day, month)
  local requests, tokens, live, oldest, oldest_at, newest_at = 0, 0, 0, -1, 0, 0
  if f[1] then requests, tokens, live, oldest, oldest_at, newest_at = struct.unpack('dddddd', f[1]) end
  return {
    key = key, is_new = not f[1], is_changed = false,
    requests = requests, tokens = tokens, live = live, oldest = oldest, oldest_at = oldest_at, newest_at = newest_at,
    values = {
      [slot] = f[2] and {struct.unpack('ddd', f[2])},
      [day] = f[3] and {struct.unpack('dd', f[3])} or NONE,
      [month] = f[4] and {struct.unpack('dd', f[4])} or NONE,
    },
  }
end

-- The value of any field: of a bucket {requests, tokens, at}, or false; of a day or month {counted, seed}, or NONE.
local function value_of(scope, name)
  local value = scope.values[name]
  if value == nil then
    local packed = redis.call('HGET', scope.key, name)
    if type(name) == 'number' then
      value = packed and {struct.unpack('ddd', packed)}
    else
      value = packed and {struct.unpack('dd', packed)} or NONE
    end
    scope.values[name] = value
  end
  return value
end

-- Write whatever is open. Most of it has changed, and to find out what has not would cost more.
local function save(scope)
  if not scope.is_changed then return end
  local fields, n = {'state', struct.pack('dddddd', scope.requests, scope.tokens, scope.live, scope.oldest,
    scope.oldest_at, scope.newest_at)}, 2
  for name, value in pairs(scope.values) do
    if type(name) == 'number' then
      value = value and struct.pack('ddd', value[1], value[2], value[3])
    else
      value = value ~= NONE and struct.pack('dd', value[1], value[2])
    end
    if value then fields[n + 1], fields[n + 2], n = name, value, n + 2 end
  end
  redis.call('HSET', scope.key, unpack(fields))
end

-- All buckets in the window, oldest first, as {number, bucket}. They lie in a range of consecutive numbers, because all
-- buckets are within one window of each other. Those that are not open stay so, and are not written back.
local function read_buckets(scope)
  local numbers, found = {}, {}
  for i = 0, NUM_BUCKETS + 2 do numbers[i + 1] = scope.oldest + i end
  for i, packed in ipairs(redis.call('HMGET', scope.key, unpack(numbers))) do
    local bucket = scope.values[numbers[i]]
    if bucket == nil then bucket = packed and {struct.unpack('ddd', packed)} end
    if bucket then found[#found + 1] = {numbers[i], bucket} end
  end
  return found
end

local function drop_old(scope, now, window_us)
  if scope.newest_at > now + SET_BACK_US then
    -- Redis's clock was set back: what the window holds counts as of now, since its own times lie ahead. Nothing passes
    -- that would not have passed, and nobody waits for longer than a window.
    for _, field in ipairs(redis.call('HKEYS', scope.key)) do
      if string.match(field, '^%d+$') then
        redis.call('HDEL', scope.key, field)
        scope.values[tonumber(field)] = false
      end
    end
    local slot = math.floor(now * NUM_BUCKETS / window_us)
    scope.values[slot], scope.is_changed = {scope.requests, scope.tokens, now}, true
    scope.oldest, scope.oldest_at, scope.newest_at = slot, now, now
  end
  if scope.oldest < 0 or scope.oldest_at + window_us > now then return end
  local found, gone = read_buckets(scope), {}
  scope.oldest, scope.oldest_at, scope.is_changed = -1, 0, true
  for _, each in ipairs(found) do
    local number, bucket = each[1], each[2]
    if bucket[3] + window_us > now then
      scope.oldest, scope.oldest_at = number, bucket[3]
      break
    end
    scope.requests = math.max(0, scope.requests - bucket[1])
    scope.tokens = math.max(0, scope.tokens - bucket[2])
    scope.values[number] = false
    gone[#gone + 1] = number
  end
  if scope.oldest < 0 then scope.requests, scope.tokens = 0, 0 end
  if #gone > 0 then redis.call('HDEL', scope.key, unpack(gone)) end
end

-- Count one more request of `tokens` at time `at`, in bucket `slot`. Returns whether the bucket is new.
local function count(scope, slot, at, tokens)
  local bucket = value_of(scope, slot)
  local is_new = not bucket
  if is_new then
    bucket = {0, 0, at}
    scope.values[slot] = bucket
  end
  bucket[1], bucket[2] = bucket[1] + 1, bucket[2] + tokens
  if at > bucket[3] then bucket[3] = at end
  scope.requests, scope.tokens, scope.is_changed = scope.requests + 1, scope.tokens + tokens, true
  if at > scope.newest_at then scope.newest_at = at end
  if scope.oldest < 0 or slot <= scope.oldest then scope.oldest, scope.oldest_at = slot, bucket[3] end
  return is_new
end

-- Add `amount`, which may be negative, to the usage of a day or a month.
local function add_to_period(scope, name, amount)
  local period = value_of(scope, name)
  if period == NONE then period = {0, -1} end
  period[1] = math.max(0, period[1] + amount)
  scope.values[name], scope.is_changed = period, true
end

-- Replace the amount that was reserved in a period by `amount`. If nothing was reserved, the limit may have been set
-- meanwhile; the ledger was then read while the request ran, and does not include it.
local function settle_period(scope, name, was_reserved, reserved, amount)
  if was_reserved then
    add_to_period(scope, name, amount - reserved)
  elseif amount > 0 and value_of(scope, name)[2] >= 0 then
    add_to_period(scope, name, amount)
  end
end

-- Keep a scope's hash for as long as it is needed. End users are named by clients, and their number is unbounded, so
-- theirs are forgotten soon (but not before any request ends), and day and month are read from the ledger again. The
-- hash of held requests must outlive the scopes that count them, or a count could never be taken back.
local function keep(held, scope, has_periods)
  local is_user = string.find(scope.key, ':limits:user:', 1, true)
  redis.call('EXPIRE', scope.key, is_user and USER_S or has_periods and LONG_S or DAY_S)
  redis.call('EXPIRE', held, LONG_S)
end

local RECORD = '^(%a+) (%d+) (%d+) (%d+) (%d+) (%d+) (.*)$'

-- Replace what `record` reserved in its scopes by the request's actual figures. scopes: the open scopes, to which this
-- adds. how: 'actual'; 'refund', as if the request had never been made; 'sweep', its gateway seems dead: its
-- concurrency is freed, and the window, day and month keep the reserved amounts until the actual figures are known.
local function close_record(scopes, record, tokens, cost, how)
  local state, slot, reserved, reserved_cost, day, month, names = string.match(record, RECORD)
  local was_live = state == 'live'
  slot, day, month = tonumber(slot), 'day:' .. day, 'month:' .. month
  reserved, reserved_cost = tonumber(reserved), tonumber(reserved_cost)
  if how ~= 'actual' then tokens, cost = 0, 0 end
  local s = 0
  for flags in string.gmatch(names, '=(%d)') do
    s = s + 1
    flags = tonumber(flags)
    local scope = scopes[s]
    if not scope then
      scope = open_scope(KEYS[s + 1], slot, day, month)
      scopes[s] = scope
    end
    if not scope.is_new then
      scope.is_changed = true
      if was_live then scope.live = math.max(0, scope.live - 1) end
      if how ~= 'sweep' then
        settle_period(scope, day, flags % 2 == 1, reserved, tokens)
        settle_period(scope, month, flags >= 2, reserved_cost, cost)
      end
      local bucket = how ~= 'sweep' and value_of(scope, slot)
      if bucket then
        local fewer = how == 'refund' and 1 or 0
        bucket[1], bucket[2] = math.max(0, bucket[1] - fewer), math.max(0, bucket[2] + tokens - reserved)
        scope.requests = math.max(0, scope.requests - fewer)
        scope.tokens = math.max(0, scope.tokens + tokens - reserved)
        scope.window = nil
      end
    end
  end
end
