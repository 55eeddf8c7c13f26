-- shares: what each flow of all processes has got for its weight, and what waits where (start-time fair queueing).
-- It follows clock.lua.
-- KEYS: 1 HASH: "clock" → virtual time of the flow that was served least of those that wait; "flow <name>" → virtual time
-- of a flow: its grants divided by its weight, plus what it missed while it did not wait; "process <id>" → JSON of at (ms)
-- and waiting, as below.
-- ARGV: 1 id of this process, 2 ms after which a process that has not reported is gone, 3 JSON of its report:
-- granted {flow → [grants since the last report, weight]}, waiting {flow → [weight, number, mean age (ms)]}.
-- Returns JSON: clock, served {flow → virtual time}, waiting {process → as reported}.
local FORGET_MS = 60000
local me, lease_ms, report = ARGV[1], tonumber(ARGV[2]), cjson.decode(ARGV[3])

local clock, served, processes = 0, {}, {}
local stored = redis.call('HGETALL', KEYS[1])
for i = 1, #stored, 2 do
  local kind, name = string.match(stored[i], '^(%a+) (.*)$')
  if kind == 'flow' then
    served[name] = tonumber(stored[i + 1])
  elseif kind == 'process' then
    local process = cjson.decode(stored[i + 1])
    if process.at + lease_ms < now then
      redis.call('HDEL', KEYS[1], stored[i])
    else
      processes[name] = process
    end
  else
    clock = tonumber(stored[i + 1])
  end
end

local function waiting_flows()
  local found = {}
  for _, process in pairs(processes) do
    for flow in pairs(process.waiting) do found[flow] = true end
  end
  return found
end

-- A flow that begins to wait gets its share from now on, and nothing for the past.
local before = waiting_flows()
local function start_of(flow)
  return before[flow] and served[flow] or math.max(served[flow] or clock, clock)
end
for flow, grants in pairs(report.granted) do
  served[flow] = start_of(flow) + grants[1] / grants[2]
end
processes[me] = {at = now, waiting = report.waiting}
for flow in pairs(report.waiting) do served[flow] = start_of(flow) end

local waiting, least = waiting_flows(), math.huge
for flow in pairs(waiting) do least = math.min(least, served[flow] or clock) end
if least < math.huge then clock = math.max(clock, least) end

local write = {'clock', string.format('%.17g', clock)}
if next(report.waiting) then
  write[#write + 1] = 'process ' .. me
  write[#write + 1] = cjson.encode(processes[me])
else
  redis.call('HDEL', KEYS[1], 'process ' .. me)
  processes[me] = nil
end
for flow, at in pairs(served) do
  if waiting[flow] or at > clock then
    write[#write + 1] = 'flow ' .. flow
    write[#write + 1] = string.format('%.17g', at)
  else
    redis.call('HDEL', KEYS[1], 'flow ' .. flow)
    served[flow] = nil
  end
end
redis.call('HSET', KEYS[1], unpack(write))
redis.call('PEXPIRE', KEYS[1], FORGET_MS)

local reply = {clock = clock, served = served, waiting = {}}
for name, process in pairs(processes) do
  reply.waiting[name] = process.waiting
end
return cjson.encode(reply)
