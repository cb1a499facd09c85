-- Prolong the leases of the requests that a gateway has under way, also those that expired while Redis was away.
-- KEYS 1 leases   ARGV 1 lease_us  2.. request ids
local clock = redis.call('TIME')
local expires = clock[1] * 1000000 + clock[2] + tonumber(ARGV[1])
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], expires, ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], math.ceil(tonumber(ARGV[1]) / 1000) + 1000)
return #ARGV - 1
