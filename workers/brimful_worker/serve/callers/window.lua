-- window: what counts in one caller's minute. It follows clock.lua.
-- KEYS: 1 ZSET of the caller's requests in the last minute → when (ms); 2 the same of those whose tokens are counted;
-- 3 HASH of these → tokens, "sum" → of all. They expire long after the minute, since a step of TIME may end them early.
local MINUTE_MS, KEPT_MS = 60000, 86400000

redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - MINUTE_MS)
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - MINUTE_MS)) do
  redis.call('HINCRBY', KEYS[3], 'sum', -(redis.call('HGET', KEYS[3], gone) or 0))
  redis.call('HDEL', KEYS[3], gone)
  redis.call('ZREM', KEYS[2], gone)
end

local function requests_used()
  return redis.call('ZCARD', KEYS[1])
end

local function tokens_used()
  return tonumber(redis.call('HGET', KEYS[3], 'sum') or 0)
end

local function count_request(id)
  redis.call('ZADD', KEYS[1], now, id)
  redis.call('PEXPIRE', KEYS[1], KEPT_MS)
end

local function count_tokens(id, amount)
  redis.call('ZADD', KEYS[2], now, id)
  redis.call('HSET', KEYS[3], id, amount)
  redis.call('HINCRBY', KEYS[3], 'sum', amount)
  redis.call('PEXPIRE', KEYS[2], KEPT_MS)
  redis.call('PEXPIRE', KEYS[3], KEPT_MS)
end
