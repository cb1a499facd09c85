-- ARGV: holder, lease_ms, session id.
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
note_until(KEYS[3], ARGV[3], ARGV[2])
return redis.call('PEXPIRE', KEYS[2], ARGV[2])
