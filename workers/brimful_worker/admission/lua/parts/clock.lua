-- clock: Redis's TIME, made steady. A step backward would leave grants "in the future" for as long as the step, a step
-- forward would end leases and window early; so the clock never goes back, and never beyond what the speaking
-- process's monotonic clock allows. The difference to TIME is kept as skew.
local now
do
  local time = redis.call('TIME')
  local real = time[1] * 1000 + math.floor(time[2] / 1000)
  now = real + number('skew')
  if message.bound_ms and message.epoch == state.epoch and now > message.bound_ms then now = message.bound_ms end
  if now < number('last') then now = number('last') end
  if now - real ~= number('skew') then put('skew', now - real) end
  put('last', now)
end
