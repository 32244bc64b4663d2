-- ARGV[1] = msgpack [argument of the script inside, tenant, task, step's number, id, charged (-1: void)]. Replies are of the one inside.
-- A void was no step: its signature and its place in the chain go.
local function settle()
--INSIDE
end
local reply = settle()
if type(reply[1]) == 'table' then reply = reply[1] end  -- alone: a batch of one
if reply[1] ~= 'OK' then return reply end
local record, n = p .. ':task:' .. o[2] .. ':' .. o[3], o[4]
local slot = n % SHOWN
local r = call('HMGET', record, 'e' .. slot, 'n', 'g')
if not r[1] or cmsgpack.unpack(r[1])[2] ~= o[5] then return reply end
if o[6] >= 0 then
  call('HSET', record, 'c' .. slot, n .. ':' .. string.format('%.0f', o[6]))
else
  local from = #r[3] - 8 * (tonumber(r[2]) - n + 1)
  if from >= 0 then
    call('HSET', record, 'g', string.sub(r[3], 1, from) .. string.rep('\0', 8) .. string.sub(r[3], from + 9))
  end
  call('HDEL', record, 'e' .. slot, 'c' .. slot)
end
return reply
