-- members: the processes of the fleet, and which of them can receive a grant now.
--
-- Every process knows the ids of all others (`members`, under a revision), so that after a loss of Redis's memory it can say
-- who is missing. A process that has just joined is granted nothing until all others have confirmed that they know it:
-- otherwise it could hold slots that nobody misses.
local SILENT_LEASES = 2

local function process_of(ticket)
  return string.match(ticket, '^~?(%x+)%.')
end

-- A field of the state that holds ids, as a set; and the other way round.
local function ids(field)
  local set = {}
  for id in string.gmatch(state[field] or '', '%x+') do set[id] = true end
  return set
end

local function put_ids(field, set)
  local list = {}
  for id in pairs(set) do list[#list + 1] = id end
  put(field, #list > 0 and table.concat(list, ' ') or nil)
end

-- While an epoch is not open, those that have yet to join are members too.
local function members()
  local list = redis.call('ZRANGE', last_seen_key, 0, -1)
  for id in pairs(ids('awaited')) do
    if not redis.call('ZSCORE', last_seen_key, id) then list[#list + 1] = id end
  end
  return list
end

-- Sends the new list of members to every process, which confirms it with its next command, at once.
local function publish_members()
  put('members_rev', number('members_rev') + 1)
  local list = members()
  redis.call('PUBLISH', everyone,
    cjson.encode({epoch = state.epoch, alive = #list, members = {number('members_rev'), list}}))
end

local function add_newcomer()
  publish_members()
  redis.call('HSET', command_seq_key, me .. ' since', number('members_rev'))
  local newcomers = ids('newcomers')
  newcomers[me] = true
  put_ids('newcomers', newcomers)
end

-- Whether every other process that was seen within a lease has confirmed a list of members with this one in it. Processes
-- of versions that confirm nothing are taken as if they had.
local function known_to_all(process, rules)
  local newcomers = state.newcomers and ids('newcomers') or {}
  if not newcomers[process] then return true end
  local since = tonumber(redis.call('HGET', command_seq_key, process .. ' since') or 0)
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', last_seen_key, '(' .. (now - rules.lease_ms), '+inf')) do
    local confirmed = other ~= process and tonumber(redis.call('HGET', command_seq_key, other .. ' members') or nil)
    if confirmed and confirmed < since then return false end
  end
  newcomers[process] = nil
  put_ids('newcomers', newcomers)
  return true
end

-- Process → number of grants it may still be sent in this turn. The sending process takes all that come. Any other must
-- have sent something within half a lease (a waiting one does so every third) and be subscribed: a grant that nobody
-- receives would leave its slot idle. Unconfirmed grants are limited to its share of the slots, so that a process that
-- hangs idles no more than that.
local push_quota = {}
local function reachable(process, rules)
  local quota = push_quota[process]
  if quota == nil and not known_to_all(process, rules) then
    quota = 0
    push_quota[process] = 0
  elseif quota == nil and process == me then
    quota = math.huge
    push_quota[process] = quota
  elseif quota == nil then
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
  redis.call('HDEL', command_seq_key, process, process .. ' seen', process .. ' members', process .. ' since')
  for _, key in ipairs({grant_seq_key, pending_grants_key, workers_key}) do redis.call('HDEL', key, process) end
  for _, key in ipairs({start_only_key, interactive_key, batch_key}) do
    for _, ticket in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      if process_of(ticket) == process then redis.call('ZREM', key, ticket) end
    end
  end
end

local function remove_silent(rules)
  local horizon = now - SILENT_LEASES * rules.lease_ms
  local removed = false
  for _, process in ipairs(redis.call('ZRANGEBYSCORE', last_seen_key, '-inf', horizon)) do
    if process ~= me then
      remove_process(process)
      removed = true
    end
  end
  if removed then publish_members() end
end
