-- clock: the first part of every script that compares times. Redis's TIME without its steps: a clock that is set back
-- would stop the callers' minutes for as long as the step, and one that is set forward would end them early. So this clock
-- never goes back, and never past what the sending front door's own clock allows. The difference to TIME is kept.
-- Last of KEYS: HASH: "last" → what the clock showed last (ms), "skew" → its difference to TIME (ms).
-- Last two of ARGV: the most that the clock can show, by the front door's own clock (ms; empty: it has not read it yet);
-- "1" to hold it back to that. Fails with LATE and the time, and does nothing, if the clock is past it and need not be.
local now
do
  local key, bound = KEYS[#KEYS], tonumber(ARGV[#ARGV - 1])
  local stored, time = redis.call('HMGET', key, 'last', 'skew'), redis.call('TIME')
  local real = time[1] * 1000 + math.floor(time[2] / 1000)
  local at = real + (stored[2] or 0)
  if bound and at > bound then
    if ARGV[#ARGV] ~= '1' then return redis.error_reply(string.format('LATE %.0f', at)) end
    at = bound
  end
  now = math.max(at, tonumber(stored[1] or 0))
  redis.call('HSET', key, 'last', string.format('%.0f', now), 'skew', string.format('%.0f', now - real))
end
