-- ARGV[1] = msgpack {p, ids}: a hold gets its lease back, a lease without hold goes; -> how many of each
local a = cmsgpack.unpack(ARGV[1])
local call, p, given, gone = redis.call, a[1], 0, 0
for _, id in ipairs(a[2]) do
  local h = call('MGET', p .. ':h:' .. id)[1]
  if h then given = given + call('ZADD', p .. ':leases', 'NX', (struct.unpack('<d', h)), id) else gone = gone + call('ZREM', p .. ':leases', id) end
end
return {given, gone}
