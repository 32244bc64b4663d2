-- ... , keys_max, only_known (0 or 1)]. Replies of its own: KEPT (id, answer), SPENT, BUSY, OTHER, MANY, NEW (only known
-- calls were asked for); else reserve's.
local function reserve()
--INSIDE
end
local t = call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
for _, member in ipairs(call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, 20)) do unlist(member) end
local r = call('HMGET', record, 's', 'f', 'id', 'x', 'n')
local is_known = r[1] and tonumber(r[4]) > now
-- Running without a hold: its gateway is gone and it was swept, or it ended without a charge.
if is_known and r[1] == 'r' and call('EXISTS', p .. ':h:' .. r[3]) == 0 then is_known = false end
if is_known then
  if r[2] ~= o[3] then return { 'OTHER', 0, now } end
  if r[1] == 'r' then return { 'BUSY', 0, now } end
  local answer = call('HGET', record, 'a')
  if answer then return { 'KEPT', 0, now, r[3], answer } end
  return { 'SPENT', 0, now }
end
if o[8] == 1 then return { 'NEW', 0, now } end
if not r[1] and tonumber(call('HGET', sums, 'k:' .. tenant) or 0) >= o[7] then return { 'MANY', 0, now } end
local reply = reserve()[1]
if reply[1] ~= 'OK' then return reply end
if r[1] then unlist(r[5] .. ':' .. tenant .. ':' .. name) end
local x = now + o[6]
call('DEL', record)
call('HSET', record, 's', 'r', 'f', o[3], 'id', o[4], 'x', x, 'n', 0)
call('PEXPIREAT', record, x)
enlist(0, x)
return reply
