-- ARGV[1] = msgpack [argument of the script inside, tenant, task, start, parent, parents, wall_ms, life_ms, max_repeats (0: none),
--   signature ('': none), tasks_max, kind, own cap, first own group, has_once, id, model, step, held, caps]; parents upwards, as
--   far as the gateway knows: [name, start, cap on spend], whose counters follow the task's own
-- Replies of its own: TASK (the start, and the parents as the counters' names and limits must have them; nothing is held), WALL
-- (ms since the start, the chain, whose ('': its own), that one's time) and AGAIN (times, the chain), TASKS (too many live); a NO of its
-- own groups has the chain, OK the step's number and the first time to end above it: when, whose, how long, since when, parents.
local function reserve()
--INSIDE
end
local PARENTS = 8                                     -- decision.workflow.MAX_PARENTS
local tenant, task, parent, wall, life, repeats, sig, own_cap = o[2], o[3], o[5], o[7], o[8], o[9], o[10], o[13]
local function record_of(name) return p .. ':task:' .. tenant .. ':' .. name end
local record, live = record_of(task), p .. ':tasks:' .. tenant
local t = call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local r = call('HMGET', record, 'a', 'n', 'g', 'm', 'p')
if parent == '' then parent = r[5] or '' end          -- said once is said
local function start_of(known, offered)
  if known then return tonumber(known) end
  return offered + life > now and offered <= now + 1000 and offered or now
end
local at, above, ends, first = start_of(r[1], o[4]), {}, nil, {'', wall}
ends, first[3] = at + wall, at
local name, upwards, is_new = parent, {[task] = true}, false
while name ~= '' and not upwards[name] and #above < PARENTS do
  local h, claimed = call('HMGET', record_of(name), 'a', 'u', 'w', 'p'), o[6][#above + 1]
  if not h[1] then
    if #above > 0 then break end                     -- forgotten meanwhile
    is_new = true
  end
  local since = start_of(h[1], claimed and claimed[2] or now)
  above[#above + 1], upwards[name] = {name, since, tonumber(h[2] or own_cap)}, true
  if h[3] and since + h[3] < ends then ends, first = since + h[3], {name, tonumber(h[3]), since} end
  name = h[4] or ''
end
local function chain()
  local parents, steps = {}, {}
  for i, one in ipairs(above) do parents[i] = one[1] end
  for i = 0, SHOWN - 1 do
    local s = call('HMGET', record, 'e' .. i, 'c' .. i)
    if s[1] then steps[#steps + 1] = {s[1], s[2] or ''} end
  end
  return {at, tonumber(r[2] or 0), parents, steps}
end
local denied = nil
if now >= ends then denied = {'WALL', 0, now, now - first[3]}
elseif repeats > 0 and sig ~= '' and r[3] then
  local times = 0
  for i = 1, #r[3], 8 do
    if string.sub(r[3], i, i + 7) == sig then times = times + 1 end
  end
  if times >= repeats then denied = {'AGAIN', 0, now, times} end
end
if denied then
  if o[15] == 1 then                                -- what was answered before is answered again
    local q = cmsgpack.unpack(ARGV[1])
    q[8] = 1
    ARGV = { cmsgpack.pack(q) }
    local reply = reserve()
    if reply[1] ~= 'NEW' then return reply end
  end
  denied[5], denied[6], denied[7] = chain(), first[1], first[2]
  return denied
end
local is_moved = at ~= o[4] or #above ~= #o[6]
for i = 1, #above do
  local it = o[6][i]
  is_moved = is_moved or it[1] ~= above[i][1] or it[2] ~= above[i][2] or it[3] ~= above[i][3]
end
if is_moved then return {'TASK', 0, now, at, above} end
local fresh = (r[1] and 0 or 1) + (is_new and 1 or 0)
if fresh > 0 and call('ZCOUNT', live, now, '+inf') + fresh > o[11] then return {'TASKS', 0, now} end
local reply = reserve()
if type(reply[1]) == 'table' then reply = reply[1] end  -- alone: a batch of one
if reply[1] == 'NO' and reply[4] >= o[14] then reply[10] = chain() end
if reply[1] ~= 'OK' then return reply end
local function live_until(name, whose, x)             -- a child or a rebuild may have begun it for less
  local ends = string.format('%.0f', x)
  if call('PEXPIRETIME', whose) < x then call('PEXPIREAT', whose, ends) end
  call('ZREMRANGEBYSCORE', live, '-inf', '(' .. now)
  call('ZADD', live, 'GT', ends, name)
  if call('PEXPIRETIME', live) < x then call('PEXPIREAT', live, ends) end
end
if is_new then
  call('HSET', record_of(parent), 'a', string.format('%.0f', above[1][2]), 'u', string.format('%.0f', above[1][3]))
  live_until(parent, record_of(parent), above[1][2] + life)
end
local n = tonumber(r[2] or 0) + 1
local seen = string.sub((r[3] or '') .. (sig ~= '' and sig or string.rep('\0', 8)), -8 * SEEN)
call('HSET', record, 'a', string.format('%.0f', at), 'n', n, 'g', seen, 'k', o[12], 'p', parent, 'm', o[20],
  'u', string.format('%.0f', own_cap), 'w', string.format('%.0f', wall), 'e' .. n % SHOWN,
  cmsgpack.pack({n, o[16], o[17], o[18], now, string.format('%.0f', o[19])}))
call('HDEL', record, 'c' .. n % SHOWN)
if not r[4] then live_until(task, record, at + life) end
reply[7], reply[8], reply[9] = n, ends, first
for i, one in ipairs(above) do first[3 + i] = one[1] end
return reply
