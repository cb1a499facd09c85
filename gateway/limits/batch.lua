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
local window_us, day_field, month_field = tonumber(ARGV[1]), 'day:' .. ARGV[2], 'month:' .. ARGV[3]
local now = now_us()
local slot = math.floor(now * NUM_BUCKETS / window_us)
local steps = 5 + 5 * num_scopes
local scopes, records = {}, {}

for s = 1, num_scopes do
  local scope, at = open_scope(KEYS[s + 1], slot, day_field, month_field), 4 + 5 * (s - 1)
  scope.max_requests, scope.max_tokens, scope.max_live = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  scope.max_day, scope.max_month = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
  drop_old(scope, now, window_us)
  scopes[s] = scope
end

-- The ledger's figures are used only where there are none yet.
local function seed(scope, tokens, cost)
  for field, used in pairs({[day_field] = scope.max_day and tokens, [month_field] = scope.max_month and cost}) do
    local period = value_of(scope, field)
    if used and period[2] < 0 then
      scope.values[field], scope.is_changed, scope.is_seeded = {period[1], used}, true, true
    end
  end
end

-- The time until enough of the oldest buckets have left to free `excess` requests (part 1) or tokens (part 2).
local function frees_in(scope, excess, part)
  if scope.oldest < 0 then return window_us end
  -- Fast path for the case that repeats throughout a flood of requests.
  if part == 1 and excess == 1 then return math.max(1, scope.oldest_at + window_us - now) end
  scope.window = scope.window or read_buckets(scope)
  for _, each in ipairs(scope.window) do
    local bucket = each[2]
    excess = excess - bucket[part]
    if excess <= 0 then return math.max(1, bucket[3] + window_us - now) end
  end
  return window_us
end

-- The limit that is exhausted, the number of its scope, and the time until a retry.
local function binding(need, cost)
  local is_load = false
  for s = 1, num_scopes do
    local scope = scopes[s]
    -- If the ledger must be read first, everything is still checked, so that a flood of requests does not become a flood
    -- of ledger reads. What was not read yet counts as zero here.
    if scope.max_day then
      local period = scope.values[day_field]
      if math.max(0, period[2]) + period[1] + need > scope.max_day then return 'tokens_per_day', s, 0 end
      is_load = is_load or period[2] < 0
    end
    if scope.max_month then
      local period = scope.values[month_field]
      if math.max(0, period[2]) + period[1] + cost > scope.max_month then return 'budget', s, 0 end
      is_load = is_load or period[2] < 0
    end
    if scope.max_requests and scope.requests + 1 > scope.max_requests then
      return 'requests_per_minute', s, frees_in(scope, scope.requests + 1 - scope.max_requests, 1)
    end
    if scope.max_tokens and scope.tokens + need > scope.max_tokens then
      return 'tokens_per_minute', s, frees_in(scope, scope.tokens + need - scope.max_tokens, 2)
    end
    if scope.max_live and scope.live + 1 > scope.max_live then return 'concurrency', s, 1000000 end
  end
  return is_load and 'load' or 'ok', 0, 0
end

local ids, answers, reserved, ended, first_day, first_month = {}, {}, {}, {}, nil, nil
for at = steps + 1, #ARGV, 4 do ids[#ids + 1] = ARGV[at] end
for i, record in ipairs(redis.call('HMGET', held, unpack(ids))) do records[ids[i]] = record end

for at = steps, #ARGV, 4 do
  local kind, id, tokens, cost = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local record = records[id]
  if kind == 'admit' then
    local verdict, number, retry_us = binding(tokens, cost)
    -- If there is a record, the request was settled, on another connection, before this step arrived: nothing is left to
    -- reserve.
    if verdict == 'ok' and not record then
      records[id] = string.format('live %d %d %d %s %s %s', slot, tokens, cost, ARGV[2], ARGV[3], ARGV[4])
      reserved[#reserved + 1] = id
      for s = 1, num_scopes do
        local scope = scopes[s]
        if count(scope, slot, now, tokens) then scope.is_kept, scope.window = true, nil end
        scope.live, scope.is_new = scope.live + 1, false
        if scope.max_day then add_to_period(scope, day_field, tokens) end
        if scope.max_month then add_to_period(scope, month_field, cost) end
      end
    end
    local tenant = scopes[1]
    local reset_us = tenant.oldest >= 0 and math.max(0, tenant.newest_at + window_us - now) or 0
    answers[#answers + 1] = string.format('%s %d %d %d %d %d', verdict, number, retry_us, tenant.requests, tenant.tokens,
      reset_us)
  elseif kind == 'first' then
    first_day, first_month = id, ARGV[at + 2]
  elseif kind == 'seed' then
    seed(scopes[tonumber(id)], tokens, cost)
  elseif not record or (record == 'done' and kind ~= 'refund') then
    answers[#answers + 1] = '0'
  else
    -- For a 'done' record the gateway asks for a refund only if it has forgotten the request; the mark is then obsolete.
    if record ~= 'done' then close_record(scopes, record, tokens, cost, kind) end
    records[id], ended[#ended + 1] = false, id
    answers[#answers + 1] = record ~= 'done' and '1' or '0'
  end
end

if #ended > 0 then redis.call('HDEL', held, unpack(ended)) end
local fields, n = {}, 0
for _, id in ipairs(reserved) do
  if records[id] then fields[n + 1], fields[n + 2], n = id, records[id], n + 2 end
end
if n > 0 then redis.call('HSET', held, unpack(fields)) end
for s = 1, num_scopes do
  local scope = scopes[s]
  save(scope)
  if scope.is_seeded then
    -- Drop past days and months.
    for _, field in ipairs(redis.call('HKEYS', scope.key)) do
      local period, digits = string.match(field, '(%a+):(%d+)$')
      local first = (period == 'day' and first_day) or (period == 'month' and first_month)
      if first and digits < first then redis.call('HDEL', scope.key, field) end
    end
  end
  if scope.is_kept or scope.is_seeded then keep(held, scope, scope.max_day or scope.max_month) end
end
return table.concat(answers, ';')
