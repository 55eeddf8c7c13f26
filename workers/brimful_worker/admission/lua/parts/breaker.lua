-- breaker: pauses, the slow start after them, and the circuit breaker that consecutive failures open.
local PROBE_MS, PROBE_MOST_MS = 500, 30000

local function slow_start_from(at)
  put('ramp_from', at)
  put('ramp_count', 0)
end

local function pause(milliseconds, reason)
  if now + milliseconds <= number('pause_until') then return end
  put('pause_until', now + milliseconds)
  put('pause_reason', reason)
  slow_start_from(now + milliseconds)
end

-- For a refusal by the limit on slots: ends with the first accepted request, which shows that the provider has a slot again.
local function pause_until_accepted(milliseconds, reason)
  if now + milliseconds <= number('busy_until') then return end
  put('busy_until', now + milliseconds)
  put('busy_reason', reason)
end

local function end_busy()
  put('busy_until', nil)
  put('busy_reason', nil)
end

local function note_verdict(rules, ticket, verdict)
  if verdict == 1 then
    if state.busy_until then end_busy() end
    if state.fails then put('fails', nil) end
    if state.tripped then
      for _, field in ipairs({'tripped', 'probe', 'probe_at', 'probes'}) do put(field, nil) end
      slow_start_from(now)
    end
  elseif verdict == 0 then
    put('fails', number('fails') + 1)
    if state.tripped and state.probe == ticket then
      put('probes', number('probes') + 1)
      put('probe_at', now + math.min(PROBE_MOST_MS, PROBE_MS * 2 ^ number('probes')))
    elseif not state.tripped and rules.breaker > 0 and number('fails') >= rules.breaker then
      put('tripped', now)
      put('probes', 0)
      put('probe_at', now + PROBE_MS)
    end
  end
  if state.probe == ticket then put('probe', nil) end
end

-- Until when nothing at all may be granted; nil if something may.
local function closed_until()
  if state.opens_at then return number('opens_at') end
  if now < number('pause_until') then return number('pause_until') end
  if state.pause_until then
    put('pause_until', nil)
    put('pause_reason', nil)
  end
  if now < number('busy_until') then return number('busy_until') end
  if state.busy_until then
    slow_start_from(number('busy_until'))
    end_busy()
  end
  return nil
end

-- How many may be granted now under pause, breaker and slow start; and if none, when to ask again.
local function allowance(rules)
  local later = closed_until()
  if later then return 0, later end
  if state.tripped then
    if rules.breaker == 0 then
      put('tripped', nil)
    else
      local probe = state.probe
      if probe and redis.call('ZSCORE', slots_key, probe) then return 0, nil end
      if now < number('probe_at') then return 0, number('probe_at') end
      return 1, nil
    end
  end
  if state.ramp_from then
    local elapsed, pace = now - number('ramp_from'), rules.ramp_ms / rules.slots
    if elapsed >= rules.ramp_ms then
      put('ramp_from', nil)
      put('ramp_count', nil)
    else
      local allowed = 1 + math.floor(elapsed / pace) - number('ramp_count')
      return allowed, math.ceil(number('ramp_from') + math.max(number('ramp_count'), 1) * pace)
    end
  end
  return math.huge, nil
end

local function note_granted(ticket)
  if state.tripped then put('probe', ticket) end
  if state.ramp_from then put('ramp_count', number('ramp_count') + 1) end
end
