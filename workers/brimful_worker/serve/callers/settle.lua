-- settle: requests of a caller, or lines of its batches, have ended: what they have used counts in the minute in which they
-- came, in place of what they might have used. What is older than a minute is left alone.
-- KEYS: 1 the third of window.lua. ARGV: id, tokens, id, tokens, …
for i = 1, #ARGV, 2 do
  local held = redis.call('HGET', KEYS[1], ARGV[i])
  if held then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
    redis.call('HINCRBY', KEYS[1], 'sum', ARGV[i + 1] - held)
  end
end
return 0
