-- ARGV[1] = msgpack [argument of the script inside, tenant, task, start, parent, parent's start, parent's cap, wall_ms, life_ms,
--   max_repeats (0: none), signature ('': none), tasks_max, kind, own cap, first own group, has_once, id, model, step, held, caps]
-- Replies of its own: TASK (the starts and the cap that the counters' names and limits must have; nothing is held), WALL and AGAIN
-- (ms since its start, or times, then the chain), TASKS (too many live); a NO of its own groups has the chain, OK the step's number.
local function reserve()
--INSIDE
end
local tenant, task, parent, life, sig, own_cap = o[2], o[3], o[5], o[9], o[11], o[14]
local record, live = p .. ':task:' .. tenant .. ':' .. task, p .. ':tasks:' .. tenant
local above = p .. ':task:' .. tenant .. ':' .. parent
local t = call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local r = call('HMGET', record, 'a', 'n', 'g', 'm')
local function start_of(known, offered)
  if known then return tonumber(known) end
  return offered + life > now and offered <= now + 1000 and offered or now
end
local at, up_at, up_cap, up = start_of(r[1], o[4]), o[6], o[7], nil
if parent ~= '' then
  up = call('HMGET', above, 'a', 'u')
  up_at, up_cap = start_of(up[1], o[6]), tonumber(up[2] or own_cap)
end
local function chain()
  local h, parents, steps = call('HMGET', record, 'n', 'p'), {}, {}
  local above_it = h[2] or parent
  while above_it and above_it ~= '' and #parents < 8 do
    parents[#parents + 1] = above_it
    above_it = call('HGET', p .. ':task:' .. tenant .. ':' .. above_it, 'p')
  end
  for i = 0, SHOWN - 1 do
    local s = call('HMGET', record, 'e' .. i, 'c' .. i)
    if s[1] then steps[#steps + 1] = {s[1], s[2] or ''} end
  end
  return {at, tonumber(h[1] or 0), parents, steps}
end
local denied = nil
if now >= at + o[8] then denied = {'WALL', 0, now, now - at}
elseif o[10] > 0 and sig ~= '' and r[3] then
  local times = 0
  for i = 1, #r[3], 8 do
    if string.sub(r[3], i, i + 7) == sig then times = times + 1 end
  end
  if times >= o[10] then denied = {'AGAIN', 0, now, times} end
end
if denied then
  if o[16] == 1 then                                -- what was answered before is answered again
    local q = cmsgpack.unpack(ARGV[1])
    q[8] = 1
    ARGV = { cmsgpack.pack(q) }
    local reply = reserve()
    if reply[1] ~= 'NEW' then return reply end
  end
  denied[5] = chain()
  return denied
end
if at ~= o[4] or up_at ~= o[6] or up_cap ~= o[7] then return {'TASK', 0, now, at, up_at, up_cap} end
local fresh = (r[1] and 0 or 1) + ((up and not up[1]) and 1 or 0)
if fresh > 0 and call('ZCOUNT', live, now, '+inf') + fresh > o[12] then return {'TASKS', 0, now} end
local reply = reserve()
if type(reply[1]) == 'table' then reply = reply[1] end  -- alone: a batch of one
if reply[1] == 'NO' and reply[4] >= o[15] then reply[10] = chain() end
if reply[1] ~= 'OK' then return reply end
local function live_until(name, whose, x)             -- a child or a rebuild may have begun it for less
  local ends = string.format('%.0f', x)
  if call('PEXPIRETIME', whose) < x then call('PEXPIREAT', whose, ends) end
  call('ZREMRANGEBYSCORE', live, '-inf', '(' .. now)
  call('ZADD', live, 'GT', ends, name)
  if call('PEXPIRETIME', live) < x then call('PEXPIREAT', live, ends) end
end
if up and not up[1] then
  call('HSET', above, 'a', string.format('%.0f', up_at), 'u', string.format('%.0f', up_cap))
  live_until(parent, above, up_at + life)
end
local n = tonumber(r[2] or 0) + 1
local seen = string.sub((r[3] or '') .. (sig ~= '' and sig or string.rep('\0', 8)), -8 * SEEN)
call('HSET', record, 'a', string.format('%.0f', at), 'n', n, 'g', seen, 'k', o[13], 'p', parent, 'm', o[21],
  'u', string.format('%.0f', own_cap), 'e' .. n % SHOWN, cmsgpack.pack({n, o[17], o[18], o[19], now, string.format('%.0f', o[20])}))
call('HDEL', record, 'c' .. n % SHOWN)
if not r[4] then live_until(task, record, at + life) end
reply[7] = n
return reply
