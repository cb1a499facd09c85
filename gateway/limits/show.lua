-- The current usage of scopes. Changes nothing.
--
-- KEYS scopes
-- ARGV 1 window_us  2 day  3 month
-- Answer: for each scope, separated by ';': requests and tokens in the window, live requests, the time until the first
-- request leaves the window and until all have left it (us), tokens of the day and their seed, cost of the month and
-- its seed (-1: unknown)
local window_us, day_field, month_field = tonumber(ARGV[1]), 'day:' .. ARGV[2], 'month:' .. ARGV[3]
local now = now_us()
local slot = math.floor(now * NUM_BUCKETS / window_us)
local answers = {}
for s, key in ipairs(KEYS) do
  local scope = open_scope(key, slot, day_field, month_field)
  local requests, tokens, first_us, last_us = 0, 0, 0, 0
  for _, each in ipairs(scope.oldest >= 0 and read_buckets(scope) or {}) do
    local bucket = each[2]
    local left_us = bucket[3] + window_us - now
    if left_us > 0 then
      requests, tokens = requests + bucket[1], tokens + bucket[2]
      if first_us == 0 then first_us = left_us end
      last_us = math.max(last_us, left_us)
    end
  end
  local of_day, of_month = scope.values[day_field], scope.values[month_field]
  answers[s] = string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f', requests, tokens, scope.live, first_us,
    last_us, of_day[1], of_day[2], of_month[1], of_month[2])
end
return table.concat(answers, ';')
