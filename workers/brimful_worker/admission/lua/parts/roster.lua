-- roster: which processes there are, and which of them can take a grant now.
local SILENT_LEASES = 2

local function process_of(ticket)
  return string.match(ticket, '^~?(%x+)%.')
end

local function listeners(channel)
  return redis.call('PUBSUB', 'NUMSUB', channel)[2]
end

-- A process that speaks may be granted; another must have spoken within half a lease (a waiting one does so every
-- third) and be listening: a push that nobody hears would idle the slot.
local reachable_memo = {[me] = true}
local function reachable(process, rules)
  local known = reachable_memo[process]
  if known == nil then
    local heard = redis.call('ZSCORE', heard_key, process)
    known = heard and now - heard <= rules.lease_ms / 2 and listeners(to .. process) > 0
    reachable_memo[process] = known
  end
  return known
end

-- Removes a process and its waiting tickets. Its leases expire by themselves.
local function forget(process)
  redis.call('ZREM', heard_key, process)
  for _, key in ipairs({commands_key, pushed_key, inbox_key, workers_key}) do redis.call('HDEL', key, process) end
  for _, key in ipairs({interactive_key, batch_key}) do
    for _, ticket in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      if process_of(ticket) == process then redis.call('ZREM', key, ticket) end
    end
  end
end

local function forget_silent(rules)
  local horizon = now - SILENT_LEASES * rules.lease_ms
  for _, process in ipairs(redis.call('ZRANGEBYSCORE', heard_key, '-inf', horizon)) do
    if process ~= me then forget(process) end
  end
end
