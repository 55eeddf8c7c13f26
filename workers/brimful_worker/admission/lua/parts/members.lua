-- roster: which processes there are, and which of them can take a grant now.
local SILENT_LEASES = 2

local function process_of(ticket)
  return string.match(ticket, '^~?(%x+)%.')
end

-- How many grants each process may be pushed now. One that speaks takes all that come; another must have spoken within
-- half a lease (a waiting one does so every third) and be listening: a push that nobody hears would idle the slot. And it
-- may have no more than its share of the slots unconfirmed: a process that hangs idles its share and no more.
local room_to_push = {[me] = math.huge}
local function reachable(process, rules)
  local room = room_to_push[process]
  if room == nil then
    local heard = redis.call('ZSCORE', heard_key, process)
    room = 0
    if heard and now - heard <= rules.lease_ms / 2 and listeners(to .. process) > 0 then
      local unconfirmed = tonumber(redis.call('HGET', pushed_key, process) or 0)
        - tonumber(redis.call('HGET', commands_key, process .. ' seen') or 0)
      room = math.max(2, math.ceil(rules.slots / redis.call('ZCARD', heard_key))) - unconfirmed
    end
    room_to_push[process] = room
  end
  return room > 0
end

-- Removes a process and its waiting tickets. Its leases expire by themselves.
local function forget(process)
  redis.call('ZREM', heard_key, process)
  redis.call('HDEL', commands_key, process, process .. ' seen')
  for _, key in ipairs({pushed_key, inbox_key, workers_key}) do redis.call('HDEL', key, process) end
  for _, key in ipairs({start_only_key, interactive_key, batch_key}) do
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
