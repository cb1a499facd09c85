-- Stop counting a gateway whose held requests were given back, unless it has sent a heartbeat meanwhile.
-- KEYS 1 zset: incarnation -> last heartbeat (us)  2 set: its tenants
-- ARGV 1 incarnation  2 lease_us  3 for how many seconds its tenants are still known
local last = redis.call('ZSCORE', KEYS[1], ARGV[1])
if last and tonumber(last) > now_us() - tonumber(ARGV[2]) then return 0 end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[3])
return 1
