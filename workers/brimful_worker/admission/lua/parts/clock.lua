-- clock: Redis's TIME without its steps. After a step backward, grants would lie "in the future" for as long as the step;
-- a step forward would end leases and the window early. So the clock never goes back, and never past what the sending
-- process's own clock allows. A command past that bound is either from before a stall of Redis or the network, which is no
-- reason to hold the clock back, or the clock was stepped: the process tells which (exchange.lua, `late` and `stepped`).
-- A joining process cannot tell: it does not move the clock over a gap in which other
-- processes, still subscribed, would have sent something. The difference to TIME is kept as skew.
local now, late

local function listeners(channel)
  return redis.call('PUBSUB', 'NUMSUB', channel)[2]
end

local function others_live()
  for _, process in ipairs(redis.call('ZRANGE', last_seen_key, 0, -1)) do
    if process ~= me and listeners(channel_prefix .. process) > 0 then return true end
  end
  return false
end

-- The newest time in a key; a state that was lost takes its clock with it, and the other keys show how far it had come.
local function newest(key)
  return tonumber(redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2] or 0)
end

local turned_at = number('last') -- when the last turn was
do
  if not state.last then
    put('last', math.max(newest(last_seen_key), newest(starts_key), newest(slots_key) - message.lease_ms))
  end
  local time = redis.call('TIME')
  local real = time[1] * 1000 + math.floor(time[2] / 1000)
  now = real + number('skew')
  late = message.epoch == state.epoch and message.bound_ms and now > message.bound_ms and not message.stepped
  if message.epoch == state.epoch then
    if not late then now = math.min(now, message.bound_ms or now) end
  elseif state.last and now - number('last') > 2 * message.lease_ms and others_live() then
    now = number('last')
  end
  if now < number('last') then now = number('last') end
  if not late then
    if not state.skew or now - real ~= number('skew') then put('skew', now - real) end
    put('last', now)
  end
end
