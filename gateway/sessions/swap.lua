-- Change a session that nobody holds, if it still is what it was. ARGV: meta as it was ('' for whatever it is),
-- new meta ('' to delete the session), new body, session id.
if redis.call('EXISTS', KEYS[2]) == 1 then return 'busy' end
local meta = redis.call('HGET', KEYS[1], 'meta')
if not meta then return 'none' end
if ARGV[1] ~= '' and ARGV[1] ~= meta then return 'changed' end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[3], ARGV[4])
else
  redis.call('HSET', KEYS[1], 'meta', ARGV[2], 'body', ARGV[3])
end
return 'ok'
