-- KEYS[1] = the credits of one pool, or of the fleet: a hash of its own, in a slot of its own
-- ARGV[1] = msgpack {owner, ttl_ms, items}; an item is one dimension:
--   {1, name, limit, want, minute}  a rate: `want` more of that minute (this or the next), below 0: given back
--   {2, name, limit, want, keep}    a gauge: own `want` in all, in place of what was owned; at least `keep`, which is in use
-- -> {now_ms, {granted, left for anybody} ...}; what is granted is gone for all others, so sums never pass the limit
local a = cmsgpack.unpack(ARGV[1])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local minute, out, all = math.floor(now / 60000), {now}, redis.call('HGETALL', KEYS[1])
local known = {}
for i = 1, #all, 2 do known[all[i]] = all[i + 1] end
for _, it in ipairs(a[3]) do
  local name, limit, want, got, left = it[2], it[3], it[4], 0, 0
  if it[1] == 1 then
    local field = 'r:' .. name .. ':' .. it[5] % 2
    local at, taken = string.match(known[field] or '', '^(%d+) (%d+)$')
    taken = tonumber(at) == it[5] and tonumber(taken) or 0
    left = math.max(0, limit - taken)
    if it[5] == minute or it[5] == minute + 1 then
      got = want < 0 and math.max(want, -taken) or math.min(want, left)
      if got ~= 0 then redis.call('HSET', KEYS[1], field, string.format('%.0f %.0f', it[5], taken + got)) end
      left = math.max(0, left - got)
    end
  else
    local prefix, others = 'g:' .. name .. ':', 0
    for field, value in pairs(known) do
      if string.sub(field, 1, #prefix) == prefix and field ~= prefix .. a[1] then
        local amount, ends = string.match(value, '^(%d+) (%d+)$')
        if tonumber(ends) > now then others = others + tonumber(amount)
        else redis.call('HDEL', KEYS[1], field) end
      end
    end
    got = math.max(it[5], math.min(want, math.max(0, limit - others)))
    left = math.max(0, limit - others - got)
    if got > 0 then redis.call('HSET', KEYS[1], prefix .. a[1], string.format('%.0f %.0f', got, now + a[2]))
    else redis.call('HDEL', KEYS[1], prefix .. a[1]) end
  end
  out[#out + 1] = {got, left}
end
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('PEXPIRE', KEYS[1], 3600000) end
return out
