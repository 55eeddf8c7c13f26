-- Claims a single request, unless it was revoked, sampled before, or is another delivery's.
-- KEYS: claim, revocation, result of this task. ARGV: this delivery's token, TTL of the claim in ms, how the result of
-- a task that succeeded begins. Returns "revoked", "stored" (the result is there), or the claim's value: the token if
-- it was free.
local claim, revocation, result = KEYS[1], KEYS[2], KEYS[3]
local token, ttl_ms, stored = ARGV[1], ARGV[2], ARGV[3]
if redis.call('EXISTS', revocation) == 1 then
    return 'revoked'
end
if redis.call('GETRANGE', result, 0, #stored - 1) == stored then
    return 'stored'
end
local holder = redis.call('GET', claim)
if not holder then
    redis.call('SET', claim, token, 'PX', ttl_ms)
    holder = token
end
return holder
