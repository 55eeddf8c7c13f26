-- minute: counts one request of a caller, and the tokens it may use, against the caller's limits of any minute.
-- It follows clock.lua and window.lua. KEYS: as of those. ARGV: 1 id of the request, 2 most requests, 3 most tokens (0: no
-- limit), 4 tokens that it may use.
-- Returns {0} if it may be sent, which counts it; {1, ms} or {2, ms}: of requests or tokens there are too many, for so long.
local id, starts, tokens, amount = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local over = requests_used() - starts
if starts > 0 and over >= 0 then
  return {1, math.max(1, redis.call('ZRANGE', KEYS[1], over, over, 'WITHSCORES')[2] + MINUTE_MS - now)}
end
if tokens > 0 then
  over = tokens_used() + amount - tokens
  local position, at = 0, now
  while over > 0 do
    local oldest = redis.call('ZRANGE', KEYS[2], position, position, 'WITHSCORES')
    if not oldest[1] then break end
    over = over - (redis.call('HGET', KEYS[3], oldest[1]) or 0)
    position, at = position + 1, oldest[2] + MINUTE_MS
  end
  if position > 0 or over > 0 then return {2, math.max(1, at - now)} end
  count_tokens(id, amount)
end
if starts > 0 then count_request(id) end
return {0}
