-- Stores a task's state and tells those who wait for it, unless the task has succeeded already.
-- KEYS: the result. ARGV: the value; seconds for which it is kept, 0 = for ever; how the result of a task that succeeded
-- begins. Returns 1 if it was stored.
local result = KEYS[1]
local value, expires_s, succeeded = ARGV[1], tonumber(ARGV[2]), ARGV[3]
if redis.call('GETRANGE', result, 0, #succeeded - 1) == succeeded then
    return 0
end
if expires_s > 0 then
    redis.call('SETEX', result, expires_s, value)
else
    redis.call('SET', result, value)
end
redis.call('PUBLISH', result, value)
return 1
