-- ARGV[1] = msgpack {p, pos, most, ids, suffixes}: one moment of a bucket, nothing is written
-- -> {epoch, run_id, state, seq, now, entries after pos, holds {id, score, hold}, counters {expiry, packed}}
-- Holds are those of the leases and those of `ids`; at most `most` entries and leases are read.
local a = cmsgpack.unpack(ARGV[1])
local call, p, most = redis.call, a[1], a[3]
local m = call('HMGET', KEYS[1], 'epoch', 'run_id', 'state', 'seq')
local t = call('TIME')
local pre, seen, ids, holds, counters = p .. ':' .. (m[1] or '0') .. ':', {}, {}, {}, {}
local entries = call('XRANGE', p .. ':usage', '(' .. a[2], '+', 'COUNT', most)
for _, id in ipairs(call('ZRANGE', p .. ':leases', 0, most - 1)) do seen[id] = true; ids[#ids + 1] = id end
for _, id in ipairs(a[4]) do if not seen[id] then ids[#ids + 1] = id end end
for i, id in ipairs(ids) do
  holds[i] = {id, call('ZSCORE', p .. ':leases', id), call('MGET', p .. ':h:' .. id)[1]}
end
for i, suffix in ipairs(a[5]) do counters[i] = {call('PEXPIRETIME', pre .. suffix), call('GET', pre .. suffix) or ''} end
return {m[1] or '0', m[2] or '', m[3] or '', m[4] or '0', t[1] * 1000 + math.floor(t[2] / 1000), entries, holds, counters}
