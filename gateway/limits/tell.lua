-- Count a tenant's requests that their gateway admitted without Redis, or that Redis may have forgotten. Telling twice
-- counts once.
--
-- KEYS as in batch.lua
-- ARGV 1 window_us  2 day  3 month  4 the record's scopes
--      then for each request: its id, tokens, cost, age_us,
--      'live' (under way; figures are reserved) or 'done' (figures are actual),
--      count it on day and month: 'always', 'seeded' (only where the ledger was read before), or 'never',
--      the time since it ended (us), for 'seeded'
-- Answer: for each request 1 or 0, whether anything was done, separated by ';'.
local held, num_scopes, window_us = KEYS[1], #KEYS - 1, tonumber(ARGV[1])
local day_field, month_field = 'day:' .. ARGV[2], 'month:' .. ARGV[3]
local now = now_us()
local scopes, flags = {}, {}
for digit in string.gmatch(ARGV[4], '=(%d)') do flags[#flags + 1] = tonumber(digit) end

local function slot_of(at) return math.floor(at * NUM_BUCKETS / window_us) end

for s = 1, num_scopes do
  scopes[s] = open_scope(KEYS[s + 1], slot_of(now - tonumber(ARGV[8])), day_field, month_field)
  drop_old(scopes[s], now, window_us)
end

local ids, records, changed, answers = {}, {}, {}, {}
for i = 5, #ARGV, 7 do ids[#ids + 1] = ARGV[i] end
for i, record in ipairs(redis.call('HMGET', held, unpack(ids))) do records[ids[i]] = record end

local function note(id, record)
  records[id] = record
  changed[#changed + 1], changed[#changed + 2] = id, record
end

local function add(scope, field, amount, periods, ended_at)
  if periods == 'always' then
    add_to_period(scope, field, amount)
  elseif periods == 'seeded' and scope.values[field][2] >= 0 then
    add_late(scope, field, amount, ended_at)
  end
end

for i = 5, #ARGV, 7 do
  local id, tokens, cost, at = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), now - tonumber(ARGV[i + 3])
  local is_live, periods, ended_at = ARGV[i + 4] == 'live', ARGV[i + 5], now - tonumber(ARGV[i + 6])
  local record = records[id]
  local is_swept = record and string.sub(record, 1, 5) == 'swept'
  if record == 'done' or (record and is_live and not is_swept) then
    answers[#answers + 1] = '0'
  elseif record and not is_live then
    close_record(scopes, record, tokens, cost, 'actual')
    note(id, 'done')
    answers[#answers + 1] = '1'
  else
    local slot = slot_of(at)
    if is_swept then
      note(id, 'live' .. string.sub(record, 6))
    elseif is_live then
      note(id, string.format('live %d %d %d %s %s %s', slot, tokens, cost, ARGV[2], ARGV[3], ARGV[4]))
    else
      note(id, 'done')
    end
    for s = 1, num_scopes do
      local scope = scopes[s]
      scope.is_changed, scope.is_kept, scope.is_new = true, true, false
      if is_live then scope.live = scope.live + 1 end
      -- A swept request is still counted in the window, and reserved on day and month.
      if not is_swept then
        if now - at < window_us then count(scope, slot, at, tokens) end
        if flags[s] % 2 == 1 then add(scope, day_field, tokens, periods, ended_at) end
        if flags[s] >= 2 then add(scope, month_field, cost, periods, ended_at) end
      end
    end
    answers[#answers + 1] = '1'
  end
end

if #changed > 0 then redis.call('HSET', held, unpack(changed)) end
for s = 1, num_scopes do
  save(scopes[s])
  if scopes[s].is_kept then keep(held, scopes[s], flags[s] > 0) end
end
return table.concat(answers, ';')
