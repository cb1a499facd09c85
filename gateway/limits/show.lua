-- How scopes stand now; changes nothing.
--
-- KEYS scopes
-- ARGV 1 window_us  2 day  3 month
-- Answer: for each scope, with ';' between: requests, tokens (of the window), live, when the first of them leaves the
-- window and when all have (us), tokens of the day and their seed, cost of the month and its seed (-1: nobody knows)
local window_us, day_field, month_field = tonumber(ARGV[1]), 'day:' .. ARGV[2], 'month:' .. ARGV[3]
local now = now_us()
local slot = math.floor(now * NUM_BUCKETS / window_us)
local answers = {}
for s, key in ipairs(KEYS) do
  local scope = read_scope(key, slot, day_field, month_field)
  local requests, tokens, first_us, last_us = 0, 0, 0, 0
  if scope.oldest >= 0 then
    for _, bucket in ipairs(redis.call('HMGET', key, unpack(bucket_numbers(scope)))) do
      if bucket then
        local requests_there, tokens_there, at = parse_bucket(bucket)
        local left_us = at + window_us - now
        if left_us > 0 then
          requests, tokens = requests + requests_there, tokens + tokens_there
          if first_us == 0 then first_us = left_us end
          last_us = math.max(last_us, left_us)
        end
      end
    end
  end
  answers[s] = string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f', requests, tokens, scope.live, first_us,
    last_us, scope.day, scope.seed_day or -1, scope.month, scope.seed_month or -1)
end
return table.concat(answers, ';')
