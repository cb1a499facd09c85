-- KEYS of every script: the session (a hash of meta and body), its lease, and its tenant's index: session id -> until_ms.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function note_until(index, id, for_ms)
  redis.call('ZADD', index, 'GT', now_ms() + for_ms, id)
  if redis.call('PTTL', index) < tonumber(for_ms) then redis.call('PEXPIRE', index, for_ms) end
end

-- Whether there is room for one more session.
local function take_place(index, id, most, for_ms)
  redis.call('ZREMRANGEBYSCORE', index, '-inf', now_ms())
  if redis.call('ZCARD', index) >= tonumber(most) and not redis.call('ZSCORE', index, id) then return false end
  note_until(index, id, for_ms)
  return true
end

