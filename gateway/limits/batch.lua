-- A gateway's steps for one tenant, in order: requests to admit, and requests that have ended. For each admission all
-- limits of all scopes are checked, and either everything is reserved or nothing. It is one call, so no race can exceed
-- a limit, and ten requests cost no more than two.
--
-- KEYS 1 held by this gateway  2.. scopes, the tenant first
-- ARGV 1 window_us  2 day  3 month  4 the record's scopes ('tenant=3 ...')
--      for each scope: requests, tokens, live, tokens a day, cost a month ('' = no limit)
--      then any number of steps, four values each:
--        admit  request id  tokens  cost
--        actual request id  tokens  cost    the actual figures; a repetition finds nothing to replace
--        refund request id  -       -       as if the request had never been made
--        first  day         month   -       the ledger was read: the first day and month to keep
--        seed   scope       tokens  cost    the ledger's figures for that scope's day and month
-- Answer: one part for each admit, actual and refund step, separated by ';'. For admit it is
-- 'verdict scope retry_us requests tokens reset_us'; for the others 1 or 0, whether anything was done.
-- verdict: ok, load (read the ledger first), or the limit that is exhausted, with the number of its scope (from 1) and
-- the time until a retry. requests, tokens and reset_us are the tenant's usage.
local held, num_scopes = KEYS[1], #KEYS - 1
local window_us, day, month = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local day_field, month_field = 'day:' .. day, 'month:' .. month
local now = now_us()
local slot = math.floor(now * NUM_BUCKETS / window_us)
local steps = 5 + 5 * num_scopes
local scopes, records, new_records, ended = {}, {}, {}, {}

for s = 1, num_scopes do
  local scope, at = open_scope(KEYS[s + 1], slot, day_field, month_field), 4 + 5 * (s - 1)
  scope.max_requests, scope.max_tokens, scope.max_live = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  scope.max_day, scope.max_month = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
  drop_old(scope, now, window_us)
  scopes[s] = scope
end

local function read_records()
  local ids = {}
  for at = steps, #ARGV, 4 do ids[#ids + 1] = ARGV[at + 1] end
  for i, record in ipairs(redis.call('HMGET', held, unpack(ids))) do records[ids[i]] = record end
end

local function drop_past_periods(key, first_day, first_month)
  for _, field in ipairs(redis.call('HKEYS', key)) do
    local period, digits = string.match(field, '(%a+):(%d+)$')
    local first = (period == 'day' and first_day) or (period == 'month' and first_month)
    if first and digits < first then redis.call('HDEL', key, field) end
  end
end

-- The ledger's figure is used only if there is none yet.
local function seed(scope, field, used)
  local period = period_of(scope, field)
  if period[2] < 0 then
    period[2], scope.new_periods[field], scope.is_changed, scope.is_seeded = used, period, true, true
  end
end

local function lacks_seed()
  for _, scope in ipairs(scopes) do
    if scope.max_day and scope.periods[day_field][2] < 0 then return true end
    if scope.max_month and scope.periods[month_field][2] < 0 then return true end
  end
  return false
end

-- The time until enough of the oldest buckets have left to free `excess` requests (part 1) or tokens (part 2).
local function frees_in(scope, excess, part)
  if scope.oldest < 0 then return window_us end
  -- Fast path for the case that repeats throughout a flood of requests.
  if part == 1 and excess == 1 then return math.max(1, scope.oldest_at + window_us - now) end
  scope.numbers = scope.numbers or read_buckets(scope)
  for _, number in ipairs(scope.numbers) do
    local bucket = scope.buckets[number]
    excess = excess - bucket[part]
    if excess <= 0 then return math.max(1, bucket[3] + window_us - now) end
  end
  return window_us
end

-- The limit that is exhausted, the number of its scope, and the time until a retry.
local function binding(need, cost, is_load)
  for s, scope in ipairs(scopes) do
    -- If the ledger must be read first, everything is still checked, so that a flood of requests does not become a flood
    -- of ledger reads. What was not read yet counts as zero here.
    local of_day, of_month = scope.periods[day_field], scope.periods[month_field]
    if scope.max_day and not_negative(of_day[2]) + of_day[1] + need > scope.max_day then return 'tokens_per_day', s, 0 end
    if scope.max_month and not_negative(of_month[2]) + of_month[1] + cost > scope.max_month then return 'budget', s, 0 end
    if scope.max_requests and scope.requests + 1 > scope.max_requests then
      return 'requests_per_minute', s, frees_in(scope, scope.requests + 1 - scope.max_requests, 1)
    end
    if scope.max_tokens and scope.tokens + need > scope.max_tokens then
      return 'tokens_per_minute', s, frees_in(scope, scope.tokens + need - scope.max_tokens, 2)
    end
    if scope.max_live and scope.live + 1 > scope.max_live then return 'concurrency', s, 1000000 end
  end
  if is_load then return 'load', 0, 0 end
  return 'ok', 0, 0
end

local function reserve(id, need, cost)
  -- The request was settled, on another connection, before this step arrived: nothing is left to reserve.
  if records[id] then return end
  records[id] = string.format('live %d %d %d %s %s %s', slot, need, cost, day, month, ARGV[4])
  new_records[id] = true
  for _, scope in ipairs(scopes) do
    if count(scope, slot, now, need) then scope.is_kept, scope.numbers = true, nil end
    scope.live, scope.is_new = scope.live + 1, false
    if scope.max_day then add_to_period(scope, day_field, need) end
    if scope.max_month then add_to_period(scope, month_field, cost) end
  end
end

local function admit(id, need, cost)
  local verdict, number, retry_us = binding(need, cost, lacks_seed())
  if verdict == 'ok' then reserve(id, need, cost) end
  local tenant = scopes[1]
  local reset_us = tenant.oldest >= 0 and math.max(0, tenant.newest_at + window_us - now) or 0
  return string.format('%s %d %d %d %d %d', verdict, number, retry_us, tenant.requests, tenant.tokens, reset_us)
end

local function close(id, tokens, cost, how)
  local record = records[id]
  -- For a 'done' record the gateway asks for a refund only if it has forgotten the request; the mark is then obsolete.
  if not record or (record == 'done' and how ~= 'refund') then return '0' end
  if record ~= 'done' then close_record(scopes, record, tokens, cost, how) end
  if new_records[id] then new_records[id] = nil else ended[#ended + 1] = id end
  records[id] = false
  return record ~= 'done' and '1' or '0'
end

local answers, first_day, first_month = {}, nil, nil
read_records()
for at = steps, #ARGV, 4 do
  local kind, id = ARGV[at], ARGV[at + 1]
  if kind == 'admit' then
    answers[#answers + 1] = admit(id, tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]))
  elseif kind == 'first' then
    first_day, first_month = id, ARGV[at + 2]
  elseif kind == 'seed' then
    local scope = scopes[tonumber(id)]
    if scope.max_day then seed(scope, day_field, tonumber(ARGV[at + 2])) end
    if scope.max_month then seed(scope, month_field, tonumber(ARGV[at + 3])) end
  else
    answers[#answers + 1] = close(id, tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), kind)
  end
end

for _, scope in ipairs(scopes) do
  save(scope)
  if scope.is_seeded then drop_past_periods(scope.key, first_day, first_month) end
end
local fields = {}
for id in pairs(new_records) do fields[#fields + 1], fields[#fields + 2] = id, records[id] end
if #fields > 0 then redis.call('HSET', held, unpack(fields)) end
if #ended > 0 then redis.call('HDEL', held, unpack(ended)) end
for _, scope in ipairs(scopes) do
  if scope.is_kept then
    keep(held, scope, scope.max_day or scope.max_month)
  elseif scope.is_seeded then
    redis.call('EXPIRE', scope.key, kept_s(scope.key, true))
  end
end
return table.concat(answers, ';')
