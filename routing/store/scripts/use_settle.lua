-- ARGV[1] = msgpack [argument of settle, id, answer ('': not settled by its holder), keep_ms, tenant]
-- Replies are settle's. The first answer stays: the ledger's row is the first one's, too.
local o = cmsgpack.unpack(ARGV[1])
local ARGV = { o[1] }
local function settle()
--INSIDE
end
local reply = settle()[1]
if reply[1] ~= 'OK' or o[3] == '' then return reply end
local tag = string.sub(KEYS[1], 1, -6)
local record = tag .. ':use:' .. o[2]
redis.call('HSETNX', record, 'a', o[3])
redis.call('HDEL', record, 'i', 'l', 'e')
redis.call('PEXPIRE', record, o[4])
redis.call('ZADD', tag .. ':uses:' .. o[5], 'XX', reply[3] + o[4], o[2])
return reply
