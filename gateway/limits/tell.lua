-- Count a request that its gateway admitted without Redis, or that Redis may have forgotten. Telling twice counts once.
--
-- KEYS as in batch.lua
-- ARGV 1 window_us  2 day  3 month  4 the record's scopes  5 request id  6 tokens  7 cost  8 age_us
--      9 'live' (under way; figures are reserved) or 'done' (figures are actual)
--      10 count it on day and month: 'always', 'seeded' (only where the ledger was read before), or 'never'
--      11 the time since it ended (us), for 'seeded'
local held, window_us, day, month = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]
local id, tokens, cost, age_us = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local day_field, month_field = 'day:' .. day, 'month:' .. month
local is_live, periods = ARGV[9] == 'live', ARGV[10]
local now = now_us()
local at = now - age_us
local slot = math.floor(at * NUM_BUCKETS / window_us)
local record = redis.call('HGET', held, id)
if record == 'done' then return 0 end

if record and not is_live then
  local scopes = {}
  close_record(scopes, record, tokens, cost, 'actual')
  for _, scope in ipairs(scopes) do save(scope) end
  redis.call('HSET', held, id, 'done')
  return 1
end
local is_swept = record and string.sub(record, 1, 5) == 'swept'
if record and not is_swept then return 0 end

if is_swept then
  redis.call('HSET', held, id, 'live' .. string.sub(record, 6))
elseif is_live then
  redis.call('HSET', held, id, string.format('live %d %d %d %s %s %s', slot, tokens, cost, day, month, ARGV[4]))
else
  redis.call('HSET', held, id, 'done')
end

local s = 1
for flags in string.gmatch(ARGV[4], '=(%d)') do
  s = s + 1
  flags = tonumber(flags)
  local scope = open_scope(KEYS[s], slot, day_field, month_field)
  drop_old(scope, now, window_us)
  -- A swept request is still counted in the window.
  if age_us < window_us and not is_swept then count(scope, slot, at, tokens) end
  scope.is_changed = true
  if is_live then scope.live = scope.live + 1 end
  local function add(field, amount)
    -- A swept request is still reserved on day and month.
    if is_swept then return end
    if periods == 'always' then
      add_to_period(scope, field, amount)
    elseif periods == 'seeded' and scope.values[field][2] >= 0 then
      add_late(scope, field, amount, now - tonumber(ARGV[11]))
    end
  end
  if flags % 2 == 1 then add(day_field, tokens) end
  if flags >= 2 then add(month_field, cost) end
  save(scope)
  keep(held, scope, flags > 0)
end
return 1
