-- members: the processes of the fleet, and which of them can receive a grant now.
--
-- Every process knows the ids of all others (`members`, under a revision), so that after a loss of Redis's memory it can say
-- who is missing. A process that has just joined is granted nothing until all others have confirmed that they know it:
-- otherwise it could hold slots that nobody misses.
local SILENT_LEASES = 2
local CONFIRM_SHARE = 16 -- part of a lease within which a process confirms its grants when it is asked to

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
  local lag_most = state.lag_most and number('lag_most')
  redis.call('PUBLISH', everyone,
    cjson.encode({epoch = state.epoch, alive = #list, members = {number('members_rev'), list}, lag_most = lag_most}))
end

-- A number of the process's description.
local function described(process, name)
  return tonumber(string.match(redis.call('HGET', workers_key, process) or '', '"' .. name .. '":(%d+)') or 0)
end

local function add_newcomer()
  publish_members()
  redis.call('HSET', command_seq_key, me .. ' since', number('members_rev'))
  local newcomers = ids('newcomers')
  newcomers[me] = true
  put_ids('newcomers', newcomers)
end

-- How much later than others a process far from Redis uses its grants. All must know the most of it before it does: after
-- a loss of memory, starts that nobody reports are counted until then.
local function note_lag()
  local lag = described(me, 'lag_ms')
  if lag <= number('lag_most') then return end
  put('lag_most', 20 * 2 ^ math.ceil(math.log(lag / 20) / math.log(2)))
  if not message.join then add_newcomer() end
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

-- Whether the process has not confirmed its grants though it was asked to some time ago: it is stopped, blocked or cut off.
local function silent(process, seen_at, asked_at, rules)
  if not asked_at or asked_at < seen_at then return false end
  return now - asked_at > rules.lease_ms / CONFIRM_SHARE + 2 * described(process, 'rtt_ms')
end

-- How many grants the process may be sent now, and true if it is away: its waiters need not be looked at until it is back.
-- The sending process takes all that come. Any other must have sent something within half a lease (a waiting one does so
-- every third) and be subscribed: a grant that nobody receives leaves its slot idle. So unconfirmed grants are few, and once
-- a process has as many it is asked to confirm them.
local function quota_of(process, rules)
  if not known_to_all(process, rules) then return 0, true end
  if process == me then return math.huge, false end
  local seen_at = tonumber(redis.call('ZSCORE', last_seen_key, process) or nil)
  if not seen_at or now - seen_at > rules.lease_ms / 2 or listeners(channel_prefix .. process) == 0 then return 0, true end
  local noted = redis.call('HMGET', command_seq_key, process .. ' seen', process .. ' asked')
  if silent(process, seen_at, tonumber(noted[2] or nil), rules) then return 0, true end
  local unconfirmed = tonumber(redis.call('HGET', grant_seq_key, process) or 0) - tonumber(noted[1] or 0)
  local share = math.ceil(rules.slots / redis.call('ZCARD', last_seen_key))
  return math.max(2, math.min(share, math.max(16, math.ceil(share / 16)))) - unconfirmed, false
end

-- Process → what it may still be sent in this turn; and whether it is away.
local push_quota, away = {}, {}
local function reachable(process, rules)
  if push_quota[process] == nil then push_quota[process], away[process] = quota_of(process, rules) end
  return push_quota[process] > 0
end

-- Removes a process and its waiters. Its leases expire by themselves.
local function remove_process(process)
  redis.call('ZREM', last_seen_key, process)
  redis.call('HDEL', command_seq_key, process, process .. ' seen', process .. ' members', process .. ' since',
    process .. ' asked')
  for _, key in ipairs({grant_seq_key, pending_grants_key, workers_key}) do redis.call('HDEL', key, process) end
  for _, key in ipairs({start_only_key, interactive_key, batch_key}) do
    for _, ticket in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      if process_of(ticket) == process then redis.call('ZREM', key, ticket) end
    end
  end
end

-- Removes processes that have sent nothing for SILENT_LEASES leases. Returns whether there was one.
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
  return removed
end
