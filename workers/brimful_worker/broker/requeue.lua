-- Puts an unacknowledged message back into its queue, unless somebody acknowledged or renewed it meanwhile.
-- KEYS: 1 unacked hash · 2 unacked index (ZSET delivery tag -> last renewal, Unix seconds) · 3 the queue's list
-- ARGV: 1 delivery tag · 2 the hash value as it was read · 3 the message to put back · 4 "head" or "tail"
--       5 latest renewal at which the message counts as abandoned, Unix seconds; "" = whatever its renewal
-- Returns 1 when it was put back, else 0.
local unacked, index, queue = KEYS[1], KEYS[2], KEYS[3]
local tag, read, message, place, abandoned = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

if redis.call('HGET', unacked, tag) ~= read then
  return 0
end
if abandoned ~= '' then
  local renewed = redis.call('ZSCORE', index, tag)
  if renewed and tonumber(renewed) > tonumber(abandoned) then
    return 0
  end
end
redis.call('HDEL', unacked, tag)
redis.call('ZREM', index, tag)
-- Workers pop from the right.
redis.call(place == 'head' and 'RPUSH' or 'LPUSH', queue, message)
return 1
