-- epoch: the time in which Redis keeps all of the admission's keys. When some are lost, or may be, a new epoch begins:
-- nothing is granted until every process has reported what it holds and what it started (join), or until a lease has
-- passed, by which time the leases of any process that could not report have ended by that process's own clock.

-- How many starts were in the window at this time, by the latest such count.
local function note_used(at, used)
  if at > number('seen_at') or (at == number('seen_at') and used > number('seen_used')) then
    put('seen_at', at)
    put('seen_used', used)
  end
end

-- Removes the rest of keys that lost a part, where processes bring the whole or bring only what is missing altogether.
local function drop_damaged()
  if shrunken.defaults or shrunken.state then
    redis.call('DEL', defaults_key)
    put('owners', nil)
  end
  if shrunken.limits then redis.call('DEL', limits_key) end
  if shrunken.tokens or shrunken.token_amounts then
    put('seen_tokens', math.max(number('seen_tokens'), number('tokens_sum')))
    redis.call('DEL', tokens_key, token_amounts_key)
  end
end

-- Which promotion made this server the primary: the history that it followed, and the offset at which it left it; '' if
-- none, or if that was long ago; nil where it does not say.
local function last_promotion()
  local replication = redis.pcall('INFO', 'replication')
  if type(replication) ~= 'string' then return nil end
  local followed = string.match(replication, 'master_replid2:(%x+)')
  local left = string.match(replication, 'second_repl_offset:(%d+)') -- -1 = never
  return followed and left and followed .. ':' .. left or ''
end

-- Whether this server followed another since the last turn: it may have taken the data of one that was behind, with the
-- run id of this server in it.
local function followed_another()
  local promotion = last_promotion()
  if not promotion or promotion == state.promotion then return false end
  local recorded = state.promotion
  put('promotion', promotion)
  return recorded ~= nil and promotion ~= ''
end

-- What the last turn counted in the window stays known, whoever started it. `rolled_back`: the server has forgotten what it
-- had answered before.
local function begin_epoch(rolled_back)
  local lease = message.lease_ms
  local rebuilding, certain = state.opens_at, state.certain
  local newest = redis.call('ZREVRANGE', last_seen_key, 0, 0, 'WITHSCORES')[2]
  local remembered = newest and redis.call('ZRANGEBYSCORE', last_seen_key, newest - lease, '+inf') or {}
  redis.call('DEL', start_only_key, interactive_key, batch_key, last_seen_key, command_seq_key, grant_seq_key,
    pending_grants_key, workers_key)
  if state.used then note_used(turned_at, number('used')) end
  for _, field in ipairs({'told', 'probe', 'used', 'certain', 'veterans', 'expected', 'newcomers'}) do put(field, nil) end
  drop_damaged()
  put('tokens_sum', 0)
  for _, amount in ipairs(redis.call('HVALS', token_amounts_key)) do put('tokens_sum', number('tokens_sum') + amount) end
  -- The limits may be those of a replica or a file that was behind.
  if state.epoch and (rolled_back or state.server ~= message.server) then put('restored', 1) end
  put('epoch', message.new_epoch)
  put('server', message.server)
  local awaited = ids('awaited') -- of a rebuild that was not complete yet
  for _, id in ipairs(remembered) do awaited[id] = true end
  put_ids('awaited', awaited)
  put('lost_at', now)
  put('cools_until', shrunken.slots and number('cooled_at') or nil)
  put('opens_at', math.max(now + lease, number('cools_until')))
  -- Of a rebuild that was not complete, the server remembers only those that had joined by then.
  if not rebuilding then put('learners_at', shrunken.state and 0 or turned_at) end
  put('certain', (rebuilding and certain or not rebuilding and #remembered > 0) and 1 or nil)
  redis.call('PUBLISH', everyone, cjson.encode({epoch = state.epoch}))
end

-- Returns the fleet's schema if the sending process uses another one. If no process of the fleet is left, the sending one
-- takes over in a new epoch, and counts the last window as full, since it may not be able to read what the others left.
local function other_schema()
  local mine, theirs = message.schema or 1, tonumber(state.schema or 1)
  if mine ~= theirs then
    local horizon = now - SILENT_LEASES * math.max(message.lease_ms, read_limits().lease_ms)
    if others_live() or redis.call('ZCOUNT', last_seen_key, '(' .. horizon, '+inf') > 0 then return theirs end
    put('epoch', nil)
    put('full', now)
  end
  if not state.schema or mine ~= theirs then put('schema', mine) end
  return nil
end

-- A process that was here before the loss names the members it knew: all of those must join before everything is known. It
-- knew everybody that was granted anything only if that server answered it not more than a lease ago. A process without
-- such knowledge does not count as one of them.
local function vouch(reported)
  if reported.used_age_ms <= message.lease_ms then put('certain', 1) end
  local awaited, veterans = ids('awaited'), ids('veterans')
  for _, id in ipairs(reported.members or {}) do awaited[id] = true end
  veterans[me] = true
  put_ids('awaited', awaited)
  put_ids('veterans', veterans)
  if not reported.members then put('expected', math.max(number('expected'), reported.alive)) end
end

-- Puts the operator's limits back, as a process knows them. Of several versions the latest counts, unless the operator set
-- limits after all was lost.
local function restore_limits(overrides)
  local rev, known = overrides.rev or 0, limits_sum()
  local missing = redis.call('EXISTS', limits_key) == 0
  if missing or (state.restored and rev > known) then
    redis.call('DEL', limits_key)
    put('restored', 1)
  elseif rev ~= known then
    return
  end
  for field, value in pairs(overrides) do redis.call('HSETNX', limits_key, field, value) end
end

-- Registers what the process holds and what it started.
local function join(reported)
  redis.call('HDEL', pending_grants_key, me) -- it asks again for what it has not taken
  redis.call('HSET', command_seq_key, me .. ' seen', redis.call('HGET', grant_seq_key, me) or 0)
  if reported.overrides then restore_limits(reported.overrides) end
  if reported.lag_most then put('lag_most', math.max(number('lag_most'), reported.lag_most)) end
  local held = {}
  for _, lease in ipairs(reported.leases or {}) do held[lease[1]] = true end
  for _, ticket in ipairs(redis.call('ZRANGE', slots_key, 0, -1)) do
    -- a grant that never reached it, or a lease that ended while it could not report that
    if process_of(ticket) == me and not held[ticket] and string.sub(ticket, 1, 1) ~= '~' then
      redis.call('ZREM', slots_key, ticket)
    end
  end
  for ticket in pairs(held) do redis.call('ZADD', slots_key, now + message.lease_ms, ticket) end
  for _, start in ipairs(reported.starts or {}) do redis.call('ZADD', starts_key, 'GT', now - start[2], start[1]) end
  for _, entry in ipairs(reported.tokens or {}) do add_tokens(entry[1], now - entry[2], entry[3]) end
  if message.members then redis.call('HSET', command_seq_key, me .. ' members', 0) end
  if reported.alive and reported.alive > 0 then -- it reports neither where it knows of no limit
    if not reported.starts then put('starts_unknown', 1) end
    if not reported.tokens then put('tokens_unknown', 1) end
  end
  if state.opens_at and reported.alive and reported.alive > 0 then
    vouch(reported)
    note_used(now - reported.used_age_ms, reported.used)
  end
  if reported.spent then put('spent', math.max(number('spent'), reported.spent)) end
end

local function live_count(rules)
  return redis.call('ZCOUNT', last_seen_key, now - rules.lease_ms, '+inf')
end

-- Adds starts of unknown processes, until the window that ends at this time holds `used`. They count as long as those of the
-- farthest process.
local function fill_window(rules, at, used)
  local known = redis.call('ZCOUNT', starts_key, '(' .. (at - rules.window_ms - rules.guard_ms), at)
  for i = known + 1, used do -- numbers that an earlier filling has not used
    redis.call('ZADD', starts_key, at + number('lag_most'), 'unknown.' .. state.epoch .. '.' .. at .. '.' .. i)
  end
end

-- Whether every member that a veteran or the server itself remembers has joined this epoch.
local function all_back()
  for id in pairs(ids('awaited')) do
    if not redis.call('ZSCORE', last_seen_key, id) then return false end
  end
  local veterans = 0
  for _ in pairs(ids('veterans')) do veterans = veterans + 1 end
  return veterans >= number('expected')
end

-- Opens the epoch when all have joined, or in time. Starts that were in the window when it was last read, and that no
-- process has reported, are put back. If a member is missing, it may have started as many as the limit allows until the
-- memory was lost, and nothing starts until those have left the window.
local function open_if_complete(rules)
  local back = all_back()
  local complete = state.certain and back and redis.call('ZCARD', last_seen_key) >= listeners(everyone)
  if complete then put('opens_at', math.min(number('opens_at'), math.max(now, number('cools_until')))) end
  if now < number('opens_at') then return end
  if not back or (rules.starts > 0 and state.starts_unknown) or (rules.tokens > 0 and state.tokens_unknown) then
    put('full', math.max(number('full'), number('lost_at')))
  end
  for _, limit in ipairs({'starts', 'tokens'}) do
    if rules[limit] == 0 then put('unlogged_' .. limit, math.max(number('lost_at'), number('full'))) end
  end
  if rules.starts > 0 then
    if state.seen_used then fill_window(rules, number('seen_at'), number('seen_used')) end
    if state.full then fill_window(rules, number('full'), rules.starts) end
  end
  if state.full and rules.tokens > 0 then add_tokens('unknown.' .. state.epoch, number('full') + number('lag_most'), rules.tokens) end
  local missing_tokens = number('seen_tokens') - number('tokens_sum')
  if missing_tokens > 0 then add_tokens('unknown.' .. state.epoch .. '.seen', number('lost_at') + number('lag_most'), missing_tokens) end
  local rebuilding = {'opens_at', 'certain', 'expected', 'awaited', 'veterans', 'lost_at', 'seen_used', 'seen_at',
    'seen_tokens', 'cools_until', 'full', 'restored', 'starts_unknown', 'tokens_unknown', 'learners_at'}
  for _, field in ipairs(rebuilding) do put(field, nil) end
  publish_members()
end
