-- minute: counts one request of a caller, and the tokens it may use, against the caller's limits of any minute.
-- KEYS: 1 ZSET of the caller's requests in the last minute → when (ms); 2 the same of those whose tokens are limited;
-- 3 HASH of these → tokens, "sum" → of all. ARGV: 1 id of the request, 2 most requests, 3 most tokens (0: no limit),
-- 4 tokens that it may use. A negative ARGV 4 settles it: -1 - the tokens that it has used.
-- Returns {0} if it may be sent, which counts it; {1, ms} or {2, ms}: of requests or tokens there are too many, for so long.
local MINUTE_MS = 60000
local id, starts, tokens, amount = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

if amount < 0 then
  local held = redis.call('HGET', KEYS[3], id)
  if held then
    redis.call('HSET', KEYS[3], id, -1 - amount)
    redis.call('HINCRBY', KEYS[3], 'sum', -1 - amount - held)
  end
  return {0}
end

if starts > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - MINUTE_MS)
  local over = redis.call('ZCARD', KEYS[1]) - starts
  if over >= 0 then
    return {1, math.max(1, redis.call('ZRANGE', KEYS[1], over, over, 'WITHSCORES')[2] + MINUTE_MS - now)}
  end
end
if tokens > 0 then
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - MINUTE_MS)) do
    redis.call('HINCRBY', KEYS[3], 'sum', -(redis.call('HGET', KEYS[3], gone) or 0))
    redis.call('HDEL', KEYS[3], gone)
    redis.call('ZREM', KEYS[2], gone)
  end
  local over = (redis.call('HGET', KEYS[3], 'sum') or 0) + amount - tokens
  local position, at = 0, now
  while over > 0 do
    local oldest = redis.call('ZRANGE', KEYS[2], position, position, 'WITHSCORES')
    if not oldest[1] then break end
    over = over - (redis.call('HGET', KEYS[3], oldest[1]) or 0)
    position, at = position + 1, oldest[2] + MINUTE_MS
  end
  if position > 0 or over > 0 then return {2, math.max(1, at - now)} end
  redis.call('ZADD', KEYS[2], now, id)
  redis.call('HSET', KEYS[3], id, amount)
  redis.call('HINCRBY', KEYS[3], 'sum', amount)
  redis.call('PEXPIRE', KEYS[2], MINUTE_MS)
  redis.call('PEXPIRE', KEYS[3], MINUTE_MS)
end
if starts > 0 then
  redis.call('ZADD', KEYS[1], now, id)
  redis.call('PEXPIRE', KEYS[1], MINUTE_MS)
end
return {0}
