-- A counter key is a string of little-endian doubles (exact to 2^53), so that a request reads and writes all of its
-- counters with few commands. A window ('w:'): held and used of req, in, out, usd. A gauge ('g:'): held and 0 of conc and
-- kv, then its expiry in ms. packed.py reads them. `field` sets one ('usd', 'usd_h') to change(old) and keeps the others.
local PLACES = {req = 1, ['in'] = 3, out = 5, usd = 7, conc = 1, kv = 3}
local function field(key, suffix, name, change)
  local dim, is_held = string.match(name, '^(%l+)(_?h?)$')
  local at = 8 * (PLACES[dim] + (is_held == '' and 1 or 0))
  local v = redis.call('GET', key) or string.rep('\0', string.sub(suffix, 1, 2) == 'g:' and 40 or 64)
  local new = struct.pack('<d', change((struct.unpack('<d', v, at - 7))))
  redis.call('SETRANGE', key, 0, string.sub(v, 1, at - 8) .. new .. string.sub(v, at + 1))
end
-- A task's counter that is filled or registered again names its task, which a lost store has forgotten: it goes on from its first call.
local function remember(p, suffix, ends)
  local tenant, task, at = string.match(suffix, '^w:([^:]+):task:([^:]*):t:(%d+)$')
  if not tenant or redis.call('HSETNX', p .. ':task:' .. tenant .. ':' .. task, 'a', at) == 0 then return end
  local live, x = p .. ':tasks:' .. tenant, string.format('%.0f', ends)
  redis.call('PEXPIREAT', p .. ':task:' .. tenant .. ':' .. task, x)
  redis.call('ZADD', live, x, task)
  if redis.call('PEXPIRETIME', live) < ends then redis.call('PEXPIREAT', live, x) end
end
