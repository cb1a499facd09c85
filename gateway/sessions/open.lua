-- Take a session for one request, and read it. ARGV: holder, lease_ms, session id, most sessions, ttl_ms.
if redis.call('EXISTS', KEYS[2]) == 1 then return {'busy', false, false} end
local kept = redis.call('HMGET', KEYS[1], 'meta', 'body')
if kept[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
  note_until(KEYS[3], ARGV[3], ARGV[5])
elseif not take_place(KEYS[3], ARGV[3], ARGV[4], ARGV[2]) then
  return {'full', false, false}
end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return {'ok', kept[1], kept[2]}
