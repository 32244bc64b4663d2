-- ARGV[1] = msgpack [argument of reserve, id, info, keep_ms, tenant, uses_max]. Replies are reserve's, and USES: too many kept.
-- record {b<n>}:use:<id>: i info, l legs, e epoch until it is settled; then a, the answer
-- {b<n>}:uses:<tenant>: the tenant's records by when they go
local o = cmsgpack.unpack(ARGV[1])
local ARGV = { o[1] }
local function reserve()
--INSIDE
end
local tag = string.sub(KEYS[1], 1, -6)
local uses = tag .. ':uses:' .. o[5]
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if redis.call('ZCOUNT', uses, now, '+inf') >= o[6] then return { 'USES', 0, now } end
local reply = reserve()[1]
if reply[1] ~= 'OK' then return reply end
local record = tag .. ':use:' .. o[2]
redis.call('HSET', record, 'i', o[3], 'l', reply[6], 'e', reply[2])
redis.call('PEXPIRE', record, o[4])
redis.call('ZREMRANGEBYSCORE', uses, '-inf', '(' .. now)
redis.call('ZADD', uses, now + o[4], o[2])
redis.call('PEXPIRE', uses, o[4])
return reply
