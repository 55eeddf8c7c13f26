-- members: the processes of the fleet, and which of them can receive a grant now.
local SILENT_LEASES = 2

local function process_of(ticket)
  return string.match(ticket, '^~?(%x+)%.')
end

-- Process → number of grants it may still be sent in this turn. The sending process takes all that come. Any other must
-- have sent something within half a lease (a waiting one does so every third) and be subscribed: a grant that nobody
-- receives would leave its slot idle. Unconfirmed grants are limited to its share of the slots, so that a process that
-- hangs idles no more than that.
local push_quota = {[me] = math.huge}
local function reachable(process, rules)
  local quota = push_quota[process]
  if quota == nil then
    local seen_at = redis.call('ZSCORE', last_seen_key, process)
    quota = 0
    if seen_at and now - seen_at <= rules.lease_ms / 2 and listeners(channel_prefix .. process) > 0 then
      local unconfirmed = tonumber(redis.call('HGET', grant_seq_key, process) or 0)
        - tonumber(redis.call('HGET', command_seq_key, process .. ' seen') or 0)
      quota = math.max(2, math.ceil(rules.slots / redis.call('ZCARD', last_seen_key))) - unconfirmed
    end
    push_quota[process] = quota
  end
  return quota > 0
end

-- Removes a process and its waiters. Its leases expire by themselves.
local function remove_process(process)
  redis.call('ZREM', last_seen_key, process)
  redis.call('HDEL', command_seq_key, process, process .. ' seen')
  for _, key in ipairs({grant_seq_key, pending_grants_key, workers_key}) do redis.call('HDEL', key, process) end
  for _, key in ipairs({start_only_key, interactive_key, batch_key}) do
    for _, ticket in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      if process_of(ticket) == process then redis.call('ZREM', key, ticket) end
    end
  end
end

local function remove_silent(rules)
  local horizon = now - SILENT_LEASES * rules.lease_ms
  for _, process in ipairs(redis.call('ZRANGEBYSCORE', last_seen_key, '-inf', horizon)) do
    if process ~= me then remove_process(process) end
  end
end
