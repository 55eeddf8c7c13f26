-- Ends a worker's claim on a shard, so that the next delivery need not wait for it to expire.
-- KEYS: 1 the shard's claim · 2 its number of tries. ARGV: 1 the worker's token · 2 '1' where this try does not count
-- Returns 1, or 0 if the claim is another's by now; then nothing is changed.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
if ARGV[2] == '1' then
  redis.call('DECR', KEYS[2])
end
return 1
