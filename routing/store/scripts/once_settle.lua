-- ... , is_kept (0 or 1), answer ('' for none), most bytes of the tenant, of the bucket]. Replies are settle's.
-- Kept: what was charged is never charged again under its key. Else the key is free again.
local function settle()
--INSIDE
end
local reply = settle()[1]
if reply[1] ~= 'OK' then return reply end
local r = call('HMGET', record, 's', 'id', 'n')
if r[1] and r[2] ~= o[4] then return reply end  -- swept meanwhile, and claimed by another call
if r[1] == 'd' then return reply end            -- sent again: it is remembered already
if r[1] then unlist(r[3] .. ':' .. tenant .. ':' .. name) end
call('DEL', record)
if o[7] == 0 then return reply end
local answer, x = o[8], reply[3] + o[6]
local size = #answer
if size > 0 and (size + tonumber(call('HGET', sums, 'b:' .. tenant) or 0) > o[9]
    or size + tonumber(call('HGET', sums, 'b') or 0) > o[10]) then size = 0 end
call('HSET', record, 's', 'd', 'f', o[3], 'id', o[4], 'x', x, 'n', size)
if size > 0 then call('HSET', record, 'a', answer) end
call('PEXPIREAT', record, x)
enlist(size, x)
return reply
