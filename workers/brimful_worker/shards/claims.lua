-- Renews a worker's claims on the shards of one run, and returns what became of each.
-- KEYS: 1 the run's drain flag · then of each shard two: its claim · its HASH
-- ARGV: 1 milliseconds a claim lasts · then of each shard the worker's token
-- Returns for each shard {state, number of its requests still wanted}; states: 'lost' another worker has the claim ·
-- 'withdrawn' its HASH is gone · 'draining' · 'held'
local draining = redis.call('EXISTS', KEYS[1]) == 1
local states = {}
for shard = 1, #ARGV - 1 do
  local claim, hash, token = KEYS[2 * shard], KEYS[2 * shard + 1], ARGV[shard + 1]
  local holder = redis.call('GET', claim)
  if holder and holder ~= token then
    states[shard] = {'lost', 0}
  else
    redis.call('SET', claim, token, 'PX', ARGV[1]) -- also where it expired while Redis was away
    local wanted = redis.call('HLEN', hash)
    states[shard] = {wanted == 0 and 'withdrawn' or draining and 'draining' or 'held', wanted}
  end
end
return states
