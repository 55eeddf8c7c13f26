-- A provider and a fleet in simulated time, around the learner of the slots (included by the test after these stubs).
-- ARGV: JSON of seconds, given (0 = auto), latency_ms, pause_ms (most, after a refusal), noise (share of random refusals),
-- spread (of the latency), limits [[from_s, slots]], waiters (that the provider lets wait), knee (active requests at
-- which the latency has doubled, 0 = never), grows_at (second from which each request is eight times as large and takes three times as long, 0 = never).
-- Returns JSON: by second, [answered, refused, slots in force].
local state, now = {}, 0
local function put(field, value) state[field] = value and tostring(value) or nil end
local function number(field) return tonumber(state[field] or 0) end
--#include learnt.lua
--#include learnt_slots.lua
local setup = cjson.decode(ARGV[1])
local STEP_MS, REFUSAL_MS, RAMP_MS = 5, 5, 2000
math.randomseed(7)

local busy_until = {}
local active, seconds, paused_until = {}, {}, -1e9
local atgateway = 0
local function true_slots()
  local slots = 1
  for _, change in ipairs(setup.limits) do
    if now >= change[1] * 1000 then slots = change[2] end
  end
  return slots
end

if setup.given == 0 then learners.slots.begin() end
for step = 1, setup.seconds * 1000 / STEP_MS do
  now = step * STEP_MS
  local second = math.floor(now / 1000) + 1
  seconds[second] = seconds[second] or {0, 0, 0}
  local in_use, ended, kept = #active, {}, {}
  for _, request in ipairs(active) do
    if request.ends <= now then ended[#ended + 1] = request else kept[#kept + 1] = request end
  end
  active = kept
  local refused = {}
  for _, request in ipairs(ended) do
    if request.refused then
      refused[#refused + 1] = request
      seconds[second][2] = seconds[second][2] + 1
      if setup.pause_ms > 0 then paused_until = math.max(paused_until, now + setup.pause_ms) end
    else
      if now < paused_until then paused_until = -1e9 end
      atgateway = atgateway - 1
      seconds[second][1] = seconds[second][1] + 1
      if setup.given == 0 then
        learners.slots.accepted(in_use, request.at, now - request.at, request.size)
      else
        learners.slots.accepted(in_use, learners.slots.learning() and request.at or nil)
      end
    end
  end
  local others = #active + #refused
  for _, request in ipairs(refused) do
    others = others - 1
    learners.slots.refused(setup.given, others, request.at)
  end
  local ramp = math.huge
  if now < paused_until then ramp = 0
  elseif now < paused_until + RAMP_MS then ramp = #active < (now - paused_until) / RAMP_MS * learners.slots.limit(setup.given) and 1 or 0 end
  while ramp > 0 do
    if #active >= learners.slots.limit(setup.given) and learners.slots.grow(setup.given) == 0 then break end
    local over = atgateway >= true_slots() + setup.waiters or math.random() < setup.noise
    local large = setup.grows_at > 0 and now >= setup.grows_at * 1000
    local latency = setup.latency_ms * (large and 3 or 1) * (1 + setup.spread * (2 * math.random() - 1))
    if setup.knee > 0 then latency = latency * (1 + atgateway / setup.knee) end
    local begins = now
    if not over then
      atgateway = atgateway + 1
      while #busy_until > true_slots() do table.remove(busy_until) end
      while #busy_until < true_slots() do table.insert(busy_until, 1, 0) end
      begins = math.max(now, table.remove(busy_until, 1))
      busy_until[#busy_until + 1] = begins + latency
      table.sort(busy_until)
    end
    active[#active + 1] = {at = now, ends = over and now + REFUSAL_MS or begins + latency, refused = over, size = large and 8 or 1}
    ramp = ramp - 1
  end
  seconds[second][3] = learners.slots.limit(setup.given)
end
return cjson.encode(seconds)
