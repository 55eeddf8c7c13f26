-- Stores a task's state and notifies those who wait for it, unless an earlier state is to stay.
-- KEYS: the result. ARGV: the value; seconds for which it is kept, 0 = for ever; then the beginnings of the results that
-- stay. Returns 1 if it was stored.
local result = KEYS[1]
local value, expires_s = ARGV[1], tonumber(ARGV[2])
for place = 3, #ARGV do
    if redis.call('GETRANGE', result, 0, #ARGV[place] - 1) == ARGV[place] then
        return 0
    end
end
if expires_s > 0 then
    redis.call('SETEX', result, expires_s, value)
else
    redis.call('SET', result, value)
end
redis.call('PUBLISH', result, value)
return 1
