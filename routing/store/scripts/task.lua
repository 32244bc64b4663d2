-- A task is an agent's work over many calls. Head of task_reserve and task_settle.
-- record {b<n>}:task:<tenant>:<task> a first call (ms), n steps so far, k kind, p parent, u cap on spend (-1: none), w its time (ms), m all caps
--   as JSON; u alone of one that only its children told of. g the steps' signatures (8 bytes each, the last 64; zeros: none), of the last 20 steps e<n%20> msgpack [n, id, model, step, at, held] and
--   c<n%20> "<n>:<charged>". It goes when the window of its counters ends; those are legs like any other
-- {b<n>}:tasks:<tenant>: the tenant's live tasks by when they go
local o = cmsgpack.unpack(ARGV[1])
local ARGV = { o[1] }
local call, p, SHOWN, SEEN = redis.call, string.sub(KEYS[1], 1, -6), 20, 64
