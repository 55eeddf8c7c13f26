-- lines: counts lines of a batch that are done against their caller's limits of any minute.
-- KEYS: as of minute.lua. ARGV: 1 a name, 2 lines, 3 their tokens (0: not counted).
local MINUTE_MS, CHUNK = 60000, 1000
local name, lines, tokens = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for first = 1, lines, CHUNK do
  local scored = {}
  for line = first, math.min(lines, first + CHUNK - 1) do
    scored[#scored + 1] = now
    scored[#scored + 1] = name .. '.' .. line
  end
  redis.call('ZADD', KEYS[1], unpack(scored))
  redis.call('PEXPIRE', KEYS[1], MINUTE_MS)
end
if tokens > 0 and redis.call('HSETNX', KEYS[3], name, tokens) == 1 then
  redis.call('ZADD', KEYS[2], now, name)
  redis.call('HINCRBY', KEYS[3], 'sum', tokens)
  redis.call('PEXPIRE', KEYS[2], MINUTE_MS)
  redis.call('PEXPIRE', KEYS[3], MINUTE_MS)
end
return 0
