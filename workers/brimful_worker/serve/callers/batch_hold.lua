-- batch_hold: holds back a part of a caller's token budget for a batch under way, over all front doors. It follows clock.lua.
-- KEYS: 1 HASH of the callers' usage; 2 HASH: "<caller> <batch>" → "<tokens> <until when, s>". ARGV: 1 field of the caller's
-- tokens in the first, 2 caller, 3 batch, 4 the budget, 5 tokens that the batch may use, 6 seconds, 7 "1" if it held as
-- many before.
-- Returns -1 if they are held; else the tokens that are left, which are fewer.
local field, caller, batch, budget, wanted = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local now_s = math.floor(now / 1000)
local left = budget - (redis.call('HGET', KEYS[1], field) or 0)
local stored = redis.call('HGETALL', KEYS[2])
for i = 1, #stored, 2 do
  local whose, which = string.match(stored[i], '^(%S+) (%S+)$')
  local tokens, till = string.match(stored[i + 1], '^(%d+) (%d+)$')
  if not till or tonumber(till) < now_s then
    redis.call('HDEL', KEYS[2], stored[i])
  elseif whose == caller and which ~= batch then
    left = left - tokens
  end
end
if ARGV[7] ~= '1' and left < wanted then return math.max(0, left) end
redis.call('HSET', KEYS[2], caller .. ' ' .. batch, string.format('%d %d', wanted, now_s + ARGV[6]))
return -1
