-- start: counts one request of a caller against its limit of any minute.
-- KEYS: 1 ZSET of the caller's requests in the last minute → when (ms). ARGV: 1 id of the request, 2 most requests.
-- Returns 0 if it may be sent, which counts it; else the milliseconds until one may.
local MINUTE_MS = 60000
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - MINUTE_MS)
local over = redis.call('ZCARD', KEYS[1]) - ARGV[2]
if over >= 0 then
  return math.max(1, redis.call('ZRANGE', KEYS[1], over, over, 'WITHSCORES')[2] + MINUTE_MS - now)
end
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('PEXPIRE', KEYS[1], MINUTE_MS)
return 0
