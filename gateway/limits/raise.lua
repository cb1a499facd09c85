-- Raise what is counted for a scope's day and month to the ledger's figures, where it is less.
-- KEYS 1 scope
-- ARGV 1 day  2 its tokens  3 month  4 its cost  5 the time since the ledger was read (us)  6 'raise', or 'trial' to
--      change nothing
-- Answer: the tokens and the cost that were missing, separated by a space.
local fields = {'day:' .. ARGV[1], 'month:' .. ARGV[3]}
local scope = open_scope(KEYS[1], 0, fields[1], fields[2])
local missing = {0, 0}
for i, field in ipairs(fields) do
  local period = scope.values[field]
  -- A figure that was never read is not raised: the next admission reads it.
  if period[2] >= 0 then missing[i] = math.max(0, tonumber(ARGV[2 * i]) - period[1] - period[2]) end
  if missing[i] > 0 and ARGV[6] == 'raise' then
    period[2], scope.is_changed = period[2] + missing[i], true
    save_raised(scope, field, raised_by(scope, field) + missing[i], now_us() - tonumber(ARGV[5]))
  end
end
save(scope)
return string.format('%.0f %.0f', missing[1], missing[2])
