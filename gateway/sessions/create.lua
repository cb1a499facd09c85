-- ARGV: meta, body, ttl_ms, session id, most sessions.
if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then return 'taken' end
if not take_place(KEYS[3], ARGV[4], ARGV[5], ARGV[3]) then return 'full' end
redis.call('HSET', KEYS[1], 'meta', ARGV[1], 'body', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 'ok'
