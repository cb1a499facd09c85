-- A gateway's heartbeat.
-- KEYS 1 zset: incarnation -> last heartbeat (us)   ARGV 1 incarnation  2 lease_us
-- Answer: the number of live gateways, whether this one was alive before, then the dead gateways not yet buried.
local now = now_us()
local before = redis.call('ZSCORE', KEYS[1], ARGV[1])
local dead_since = now - tonumber(ARGV[2])
local was_alive = before and tonumber(before) > dead_since
redis.call('ZADD', KEYS[1], now, ARGV[1])
-- The clock was set back: a heartbeat that lies ahead would keep a dead gateway alive until that time.
for _, ahead in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now + SET_BACK_US, '+inf')) do
  redis.call('ZADD', KEYS[1], now, ahead)
end
local dead = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', dead_since)
return {redis.call('ZCOUNT', KEYS[1], '(' .. string.format('%d', dead_since), '+inf'), was_alive and 1 or 0, unpack(dead)}
