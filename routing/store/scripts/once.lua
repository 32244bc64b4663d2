-- One idempotency key is one call. Head of once_reserve and once_settle: the arguments' common part.
-- ARGV[1] = msgpack [argument of the script inside, name, print, request id, tenant, keep_ms, ...]
-- record {b<n>}:once:<name>: s 'r' running or 'd' done, f print of the body, id of the call, x expiry
--   (ms), n size of the answer, a the sealed answer
-- index  {b<n>}:once: sorted set "<size>:<tenant>:<name>" -> expiry; {b<n>}:once-sums: what it adds up
--   to: "k:<tenant>" keys, "b:<tenant>" and "b" bytes of answers
local o = cmsgpack.unpack(ARGV[1])
local ARGV = { o[1] }
local call, p, name, tenant = redis.call, string.sub(KEYS[1], 1, -6), o[2], o[5]
local record, index, sums = p .. ':once:' .. name, p .. ':once', p .. ':once-sums'
local function add(field, amount)
  if amount ~= 0 and call('HINCRBY', sums, field, amount) <= 0 then call('HDEL', sums, field) end
end
local function count(size, whose, sign)
  add('k:' .. whose, sign)
  add('b:' .. whose, sign * size)
  add('b', sign * size)
end
local function unlist(member)
  if call('ZREM', index, member) == 0 then return end
  local size, whose = string.match(member, '^(%d+):(.*):%x+$')
  count(tonumber(size), whose, -1)
end
local function enlist(size, x)
  if call('ZADD', index, x, size .. ':' .. tenant .. ':' .. name) == 1 then count(size, tenant, 1) end
  call('PEXPIREAT', index, x)
  call('PEXPIREAT', sums, x)
end
