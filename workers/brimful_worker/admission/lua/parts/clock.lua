-- clock: Redis's TIME without its steps. After a step backward, grants would lie "in the future" for as long as the step;
-- a step forward would end leases and the window early. So the clock never goes back, and never past what the sending
-- process's own clock allows. A command past that bound is either from before a stall of Redis or the network, which is no
-- reason to hold the clock back, or the clock was stepped: the process says which (exchange.lua, `late` and `stepped`).
--
-- A process that has not read this clock yet, as one that joins, has no bound. Unless the fleet has no other process, it
-- moves the clock by LEAP_MS at most; if more has passed, one of the others must send a command first (`frozen`). From then
-- on TIME is right until the process sees a step of it, however long its command was on its way. If none does for
-- FROZEN_MOST_MS, all may be cut off or dead: the clock moves by the time that the process has waited itself, and loses
-- the rest. The difference to TIME is kept as skew.
--
-- Time that the clock has lost, so or by a step backward, must not come back by a step forward: what was granted meanwhile
-- would be counted as older than it is. The bounds of processes that have not heard of the loss would allow that, so it is
-- another clock from then on, which they have to read first. A process that has read the clock names the time that it must
-- have reached (least_ms), and so notices the loss.
local LEAP_MS, FROZEN_MOST_MS = 250, 2000
local now, real, late, frozen, lost

local function listeners(channel)
  return redis.call('PUBSUB', 'NUMSUB', channel)[2]
end

-- Whether processes may be alive that last_seen does not name: it has lost them, or they have yet to join the epoch.
local forgetful = not state.last or shrunken.state or shrunken.last_seen or state.opens_at

local function others_live()
  for _, process in ipairs(redis.call('ZRANGE', last_seen_key, 0, -1)) do
    if process ~= me and listeners(channel_prefix .. process) > 0 then return true end
  end
  return forgetful and listeners(everyone) > listeners(channel_prefix .. me)
end

-- Whether the fleet has no other process, not even one that is cut off.
local function alone()
  return not forgetful and redis.call('ZCARD', last_seen_key) == (redis.call('ZSCORE', last_seen_key, me) and 1 or 0)
end

-- Asks the process that sent the last command for another at once; all of them if it has not helped.
local function prompt_others()
  if not state.epoch or forgetful then redis.call('PUBLISH', everyone, '{"epoch":null}') end
  if not state.epoch then return end
  for _, process in ipairs(redis.call('ZREVRANGE', last_seen_key, 0, -1)) do
    if process ~= me and listeners(channel_prefix .. process) > 0 then
      redis.call('PUBLISH', channel_prefix .. process, cjson.encode({now = now, epoch = state.epoch, at = now}))
      if not message.waited then return end
    end
  end
end

-- The newest time in a key; a state that was lost takes its clock with it, and the other keys show how far it had come.
local function newest(key)
  return tonumber(redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2] or 0)
end

-- What the clock shows without a step, or nil. By a process of a version without `clock`, its bound holds in its epoch.
local function without_step(at, last)
  local bound = message.bound_ms
  if bound and (message.clock and message.clock == state.clock or not message.clock and message.epoch == state.epoch) then
    late = at > bound and not message.stepped
    return late and at or math.min(at, bound)
  elseif bound and message.clock and not state.clock then
    return math.min(at, bound) -- the state was lost: its clock goes on as this process knows it
  elseif at - last <= LEAP_MS or last <= 0 or alone() then
    return at
  elseif not message.clock then
    return others_live() and at - last > 2 * message.lease_ms and last or at
  end
  local reading, waited, clock, most = unpack(message.waited or {})
  if clock and clock == state.clock and last > reading then return real <= most and at or nil end
  if reading ~= last or waited < FROZEN_MOST_MS then return nil end
  -- Meanwhile nobody could join the epoch.
  if state.opens_at then put('opens_at', number('opens_at') + waited) end
  lost = at > last + waited
  return math.min(at, last + waited)
end

local turned_at = number('last') -- when the last turn was
do
  if not state.last then
    put('last', math.max(newest(last_seen_key), newest(starts_key), newest(slots_key) - message.lease_ms))
  end
  local time = redis.call('TIME')
  local last = number('last')
  real = time[1] * 1000 + math.floor(time[2] / 1000)
  local at = without_step(real + number('skew'), last)
  frozen = not at
  now = math.max(last, at or last)
  if not late and not frozen then
    local known = message.clock and message.clock == state.clock
    if not state.clock or lost or known and now < (message.least_ms or 0) then put('clock', message.new_epoch) end
    if not state.skew or now - real ~= number('skew') then put('skew', now - real) end
    put('last', now)
  end
end
