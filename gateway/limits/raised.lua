-- What `raise` has added to days and months, for the scripts that need to know; it is prepended to them.

-- By how much the period's figure was raised to the ledger's for requests that have not been told since, and the time of
-- the last reading.
local function raised_by(scope, name)
  local by, read_at = string.match(redis.call('HGET', scope.key, 'raised:' .. name) or '', '^(%d+) (%d+)$')
  return tonumber(by or 0), tonumber(read_at or 0)
end

local function save_raised(scope, name, by, read_at)
  redis.call('HSET', scope.key, 'raised:' .. name, string.format('%.0f %.0f', by, read_at))
end

-- Add the usage of a request that ended long ago. If the ledger was read after that, the figure may have been raised for
-- it already.
local function add_late(scope, name, amount, ended_at)
  local raised, read_at = raised_by(scope, name)
  local covered = ended_at <= read_at and math.min(raised, amount) or 0
  if covered > 0 then save_raised(scope, name, raised - covered, read_at) end
  add_to_period(scope, name, amount - covered)
end

