-- slots: lets requests of one caller be sent, as many at once as its limit allows, over all front doors, in the order in
-- which they came. It follows clock.lua.
-- KEYS: 1 ZSET: request that holds one of the caller's slots → end of its lease; 2 ZSET: request that waits → when it came;
-- 3 ZSET: front door → until when what waits at it counts (all ms). A request's id begins with its front door's and a ".".
-- ARGV: 1 this front door, 2 the limit, 3 duration of leases and 4 for which it counts (ms), 5 JSON: ask, hold and end are
-- arrays of the ids of requests that wait, hold, and do neither any more.
-- Returns the ids of this front door's requests that now hold.
local door, limit, lease_ms, counts_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local told = cjson.decode(ARGV[5])
local KEPT_MS = 86400000 -- longer than all leases, since a step of TIME may end the keys early

redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
redis.call('ZADD', KEYS[3], now + counts_ms, door)
for _, id in ipairs(told['end']) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('ZREM', KEYS[2], id)
end
for _, id in ipairs(told.hold) do redis.call('ZADD', KEYS[1], now + lease_ms, id) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
for _, id in ipairs(told.ask) do
  if not redis.call('ZSCORE', KEYS[1], id) then redis.call('ZADD', KEYS[2], 'NX', now, id) end
end
local granted, free = {}, limit - redis.call('ZCARD', KEYS[1])
for _, id in ipairs(told.ask) do
  if redis.call('ZSCORE', KEYS[1], id) then granted[#granted + 1] = id end -- the answer to an earlier command was lost
end
for _, id in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  if free <= 0 then break end
  local its = string.match(id, '^[^.]*')
  if its == door then
    redis.call('ZREM', KEYS[2], id)
    redis.call('ZADD', KEYS[1], now + lease_ms, id)
    granted[#granted + 1] = id
    free = free - 1
  elseif not redis.call('ZSCORE', KEYS[3], its) then
    redis.call('ZREM', KEYS[2], id)
  else
    free = free - 1 -- its front door asks soon
  end
end
for key = 1, 3 do redis.call('PEXPIRE', KEYS[key], KEPT_MS) end
return granted
