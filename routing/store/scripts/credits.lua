-- KEYS[1] = the credits of one pool, or of the fleet: a hash of its own, in a slot of its own
-- ARGV[1] = msgpack {owner, ttl_ms, items, lend_after_ms}; an item is one dimension of one work class ('' without classes):
--   {1, name, limit, want, minute, class, shares}  a rate: `want` more of that minute (this or the next), below 0: given back
--   {2, name, limit, want, keep, class, shares}    a gauge: own `want` in all, in place of what was owned; at least `keep`, which is in use
--   shares = {class, kept in use, kept when idle ...}: what other classes may not take (routing/decision/classes.py)
-- -> {now_ms, {granted, left for anybody, may} ...}; what is granted is gone for all others, so sums never pass the limit;
--   `may` is below what a gauge keeps when a lent share is wanted back: no new request until less is in use
local a = cmsgpack.unpack(ARGV[1])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local minute, out, all = math.floor(now / 60000), {now}, redis.call('HGETALL', KEYS[1])
local known = {}
for i = 1, #all, 2 do known[all[i]] = all[i + 1] end
local function set(field, value) known[field] = value; redis.call('HSET', KEYS[1], field, value) end
local function drop(field) known[field] = nil; redis.call('HDEL', KEYS[1], field) end
local function whole(n) return string.format('%.0f', n) end
-- what class may still take, when each class uses used[class] of the limit, all together total
local function room(it, used, total)
  local class, shares, own, kept, free = it[6], it[7], 0, 0, it[3] - total
  for i = 1, #shares, 3 do
    local other, mine = shares[i], used[shares[i]] or 0
    local asked = tonumber(known['a:' .. it[2] .. ':' .. other] or 0)
    if other == class then own = shares[i + 1] - mine
    elseif mine > 0 or now - asked <= a[4] then kept = kept + math.max(0, shares[i + 1] - mine)
    else kept = kept + shares[i + 2] end
  end
  return math.max(0, math.min(free, math.max(own, free - kept)))
end
for _, it in ipairs(a[3]) do
  local name, limit, want, class, got, left, may = it[2], it[3], it[4], it[6], 0, 0, 0
  local used, total = {}, 0
  if class ~= '' and want > 0 then set('a:' .. name .. ':' .. class, whole(now)) end
  if it[1] == 1 then
    local prefix = 'r:' .. name .. ':' .. it[5] % 2 .. ':'
    for field, value in pairs(known) do
      if string.sub(field, 1, #prefix) == prefix then
        local at, taken = string.match(value, '^(%d+) (%d+)$')
        if tonumber(at) == it[5] then
          used[string.sub(field, #prefix + 1)] = tonumber(taken)
          total = total + tonumber(taken)
        end
      end
    end
    local taken = used[class] or 0
    left = math.max(0, limit - total)
    if it[5] == minute or it[5] == minute + 1 then
      got = want < 0 and math.max(want, -taken) or math.min(want, room(it, used, total))
      if got ~= 0 then set(prefix .. class, whole(it[5]) .. ' ' .. whole(taken + got)) end
      left = math.max(0, left - got)
    end
    may = got
  else
    local prefix = 'g:' .. name .. ':'
    local own = prefix .. class .. ':' .. a[1]
    for field, value in pairs(known) do
      if string.sub(field, 1, #prefix) == prefix and field ~= own then
        local amount, ends = string.match(value, '^(%d+) (%d+)$')
        if tonumber(ends) > now then
          local whose = string.match(field, '^(%l*):', #prefix + 1)
          used[whose] = (used[whose] or 0) + tonumber(amount)
          total = total + tonumber(amount)
        else drop(field) end
      end
    end
    may = math.min(want, room(it, used, total))
    got = math.max(it[5], may)
    left = math.max(0, limit - total - got)
    if got > 0 then set(own, whole(got) .. ' ' .. whole(now + a[2]))
    else drop(own) end
  end
  out[#out + 1] = {got, left, may}
end
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('PEXPIRE', KEYS[1], 3600000) end
return out
