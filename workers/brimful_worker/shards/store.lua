-- Adds outcomes to their run's results, and removes their requests from what is still wanted, in one step.
-- Adds nothing once the run is closed: nobody will collect its outcomes.
-- KEYS: 1 results (STREAM) · 2 the run's closed flag · 3… the shards' HASHes, each once
-- ARGV: 1 seconds for which the results are kept · then of each outcome four: index of its shard's HASH in KEYS ·
--       request id · units (JSON) · outcome (JSON)
if redis.call('EXISTS', KEYS[2]) == 1 then
  return
end
local ended = {} -- index of a HASH → request ids
for at = 2, #ARGV, 4 do
  local index, id = ARGV[at], ARGV[at + 1]
  redis.call('XADD', KEYS[1], '*', 'id', id, 'units', ARGV[at + 2], 'outcome', ARGV[at + 3])
  ended[index] = ended[index] or {}
  table.insert(ended[index], id)
end
for index, ids in pairs(ended) do redis.call('HDEL', KEYS[tonumber(index)], unpack(ids)) end
redis.call('EXPIRE', KEYS[1], ARGV[1])
