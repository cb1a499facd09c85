-- Keep a turn and give the session back. ARGV: holder, meta, body, ttl_ms, session id.
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 'lost' end
redis.call('HSET', KEYS[1], 'meta', ARGV[2], 'body', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
note_until(KEYS[3], ARGV[5], ARGV[4])
redis.call('DEL', KEYS[2])
return 'ok'
