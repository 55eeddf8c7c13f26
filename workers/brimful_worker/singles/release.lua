-- Ends a claim on a single request, so that another delivery need not wait for it to expire.
-- KEYS: claim. ARGV: the holder's token. Returns 1, or 0 if the claim is another's by now.
if redis.call('GET', KEYS[1]) == ARGV[1] then
    return redis.call('DEL', KEYS[1])
end
return 0
