-- ARGV[1] = msgpack [argument of reserve, id, info, keep_ms]. Replies are reserve's.
-- record {b<n>}:use:<id>: i info, l legs, e epoch until it is settled; then a, the answer
local o = cmsgpack.unpack(ARGV[1])
local ARGV = { o[1] }
local function reserve()
--INSIDE
end
local reply = reserve()
if reply[1] ~= 'OK' then return reply end
local record = string.sub(KEYS[1], 1, -6) .. ':use:' .. o[2]
redis.call('HSET', record, 'i', o[3], 'l', reply[6], 'e', reply[2])
redis.call('PEXPIRE', record, o[4])
return reply
