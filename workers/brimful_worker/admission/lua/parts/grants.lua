-- grants: slot and start together, for as long as the limits allow; who receives them, and who asks again when.
local LOG_LEAST_MS = 60000

-- For how many milliseconds longer the process's starts count, since its grants take long to arrive. It may use each for as
-- much longer, so the lag goes with the grant.
local lags = {}
local function lag_of(process, rules)
  if rules.starts == 0 and rules.tokens == 0 then return 0 end
  lags[process] = lags[process] or math.min(described(process, 'lag_ms'), rules.lease_ms)
  return lags[process]
end

local function add_grant(outcome, process, ticket)
  local tickets = outcome.granted[process] or {}
  tickets[#tickets + 1] = ticket
  outcome.granted[process] = tickets
  push_quota[process] = push_quota[process] - 1
end

-- When enough starts have left the window for one more, or for up to `most` more if those leave it a moment later: one
-- command then grants them together.
local function next_start_at(rules, used, window, most)
  local leaves, together_ms = math.max(0, used - rules.starts), math.min(50, window / 200)
  local starts = redis.call('ZRANGEBYSCORE', starts_key, '(' .. (now - window), '+inf', 'WITHSCORES',
    'LIMIT', leaves, math.min(most, 64))
  local at = starts[2]
  for i = 4, #starts, 2 do
    if starts[i] - starts[2] <= together_ms then at = starts[i] end
  end
  return at + window
end

-- When the next start is possible while the window is full; nil if it is not.
local function full_until(rules, used, window)
  if rules.starts == 0 or used < rules.starts then return nil end
  local waiting = redis.call('ZCARD', interactive_key) + redis.call('ZCARD', batch_key)
  return next_start_at(rules, used, window, math.max(1, math.min(waiting, rules.slots)))
end

-- Starts without a slot, for processes that hold one. Returns true if one must wait: nothing else may be granted then.
local function grant_starts(rules, outcome, waiting, window)
  while true do
    local ticket = waiting.peek()
    if not ticket then return false end
    local later = closed_until()
    if not later and rules.starts > 0 and outcome.used >= rules.starts then
      later = next_start_at(rules, outcome.used, window, 1)
    end
    if later then
      outcome.head, outcome.wake = process_of(ticket), later
      return true
    end
    waiting.take()
    if rules.starts > 0 then
      redis.call('ZADD', starts_key, now + lag_of(process_of(ticket), rules), ticket)
      outcome.used = outcome.used + 1
    end
    add_grant(outcome, process_of(ticket), ticket)
  end
end

-- Writes what was granted since the last call. Everything that reads the slots, the starts or a queue comes after it.
local function write_granted(outcome)
  for _, queue in ipairs(outcome.queues) do queue.write() end
  add_tickets(slots_key, outcome.new_slots)
  add_tickets(starts_key, outcome.new_starts)
  outcome.new_slots, outcome.new_starts = {}, {}
end

-- Returns granted {process → [ticket]}, noted [ticket] and names [name or false] of those with a slot, refused [ticket], used,
-- and where it stopped: head (the process of the ticket that waits) and wake (when it may be granted; nil = at a release). Where
-- released slots serve nobody for a while: idle (nobody waits, and half of the slots are free) or full_until. The caller writes
-- the rest of what was granted.
local function grant_queued(rules, given)
  local window = rules.window_ms + rules.guard_ms
  local outcome = {granted = {}, noted = {}, names = {}, refused = {}, used = 0, new_slots = {}, new_starts = {}}
  local free = rules.slots - redis.call('ZCARD', slots_key)
  if rules.starts > 0 then
    -- Kept for a minute at least, so that a window made longer meanwhile knows what it held; and all of it during a
    -- rebuild, so that an older count of the window can be compared.
    if not state.opens_at then
      local kept_ms = math.max(window, LOG_LEAST_MS)
      -- When a request is accepted, the window before its start is counted.
      if learners.starts.learning() then kept_ms = 3 * kept_ms end
      redis.call('ZREMRANGEBYSCORE', starts_key, '-inf', now - kept_ms)
    end
    outcome.used = redis.call('ZCOUNT', starts_key, '(' .. (now - window), '+inf')
  end
  restore_parked(rules)
  local start_only = reader(start_only_key, rules)
  local interactive, batch = reader(interactive_key, rules), reader(batch_key, rules)
  outcome.queues = {start_only, interactive, batch}
  if grant_starts(rules, outcome, start_only, window) then return outcome end
  trim_tokens(rules)
  local room
  while true do
    room = room or batch_room(rules)
    local queue, ticket, aged = choose(rules, interactive, batch, room)
    if not ticket then
      write_granted(outcome)
      outcome.idle = not state.opens_at and 2 * free >= rules.slots
      outcome.full_until = full_until(rules, outcome.used, window)
      return outcome
    end
    outcome.head = process_of(ticket)
    local allowed, later = allowance(rules)
    local budget = budget_verdict(rules, ticket)
    if allowed <= 0 then
      outcome.wake = later
      return outcome
    elseif free <= 0 or (queue == batch and room.slots <= 0) then
      write_granted(outcome)
      local more, more_at = 0, nil
      if free <= 0 then more, more_at = learners.slots.grow(given.slots) end
      if more == 0 then
        outcome.wake = tonumber(redis.call('ZRANGE', slots_key, 0, 0, 'WITHSCORES')[2])
        if outcome.wake and outcome.wake > now + rules.lease_ms / 3 then outcome.wake = nil end
        outcome.wake = sooner(outcome.wake, more_at)
        outcome.full_until = full_until(rules, outcome.used, window)
        return outcome
      end
      free, room = free + more, nil
      apply_learnt(rules, given)
    elseif rules.starts > 0 and outcome.used >= rules.starts or (queue == batch and room.starts <= 0) then
      write_granted(outcome)
      local more, more_at = 0, nil
      if outcome.used >= rules.starts then more, more_at = learners.starts.grow(given.starts, rules, outcome.used) end
      if more == 0 then
        outcome.full_until = full_until(rules, outcome.used, window)
        outcome.wake = sooner(outcome.full_until or next_start_at(rules, outcome.used, window, 1), more_at)
        return outcome
      end
      room = nil
      rules.starts = outcome.used + more -- in this turn
    elseif budget == 'wait' then
      return outcome
    elseif budget == 'never' and outcome.head ~= me then
      outcome.wake = now -- only its own process can be given the refusal
      return outcome
    elseif budget == 'never' then
      queue.skip() -- its process cancels it when it has the refusal
      outcome.refused[#outcome.refused + 1] = ticket
    else
      local fits_at = tokens_fit_at(rules, ticket)
      if fits_at then
        outcome.wake = fits_at
        return outcome
      end
      queue.take()
      local slots, starts, counts = outcome.new_slots, outcome.new_starts, now + lag_of(outcome.head, rules)
      slots[#slots + 1], slots[#slots + 2] = now + rules.lease_ms, ticket
      if rules.starts > 0 then
        starts[#starts + 1], starts[#starts + 2] = counts, ticket
        outcome.used = outcome.used + 1
      end
      if rules.tokens > 0 then add_tokens(ticket, counts, tokens_of(ticket)) end
      hold_of_budget(ticket)
      note_granted(ticket)
      if state.tripped then write_granted(outcome) end -- `allowance` looks for the slot of the probe
      outcome.noted[#outcome.noted + 1], outcome.names[#outcome.names + 1] = ticket, name_of(ticket) or false
      free = free - 1
      if queue == batch then
        room.slots, room.starts = room.slots - 1, room.starts - 1
        if state.turn then put('turn', nil) end
      elseif aged then
        put('turn', number('turn') + 1)
      end
      add_grant(outcome, outcome.head, ticket)
    end
  end
end

local function grant_all(rules, given)
  local outcome = grant_queued(rules, given)
  write_granted(outcome)
  return outcome
end

-- Lists of grants are joined as JSON, since to decode and encode them costs more than the rest of their delivery.
local function joined(grants, more)
  return grants and string.sub(grants, 1, -2) .. ',' .. string.sub(more, 2) or more
end

local function with_grants(object, grants)
  return grants and string.sub(object, 1, -2) .. ',"grants":' .. grants .. '}' or object
end

-- Those of this process's grants that it has not taken, in JSON; nil if none.
local function unseen_grants()
  if tonumber(redis.call('HGET', grant_seq_key, me) or 0) > message.seen then
    local kept, unseen = cjson.decode(redis.call('HGET', pending_grants_key, me) or '[]'), {}
    for _, grant in ipairs(kept) do
      if grant[1] > message.seen then unseen[#unseen + 1] = grant end
    end
    if #unseen > 0 then
      local encoded = cjson.encode(unseen)
      if #unseen < #kept then redis.call('HSET', pending_grants_key, me, encoded) end
      return encoded
    end
  end
  return nil
end

-- Notes the grants as on the wire, numbers them, keeps them until they are confirmed, and publishes those for other processes.
-- Returns all of this process's grants that it has not taken yet, in JSON; nil if none.
local function deliver(outcome)
  local deaths_of, mine = note_on_wire(outcome.noted, outcome.names), unseen_grants()
  for process, tickets in pairs(outcome.granted) do
    local before, lag = redis.call('HINCRBY', grant_seq_key, process, #tickets) - #tickets, lags[process] or 0
    local fresh = {}
    for i, ticket in ipairs(tickets) do
      fresh[i] = {before + i, ticket, now, deaths_of[ticket]}
      if lag > 0 then fresh[i][4], fresh[i][5] = deaths_of[ticket] or 0, lag end
    end
    fresh = cjson.encode(fresh)
    local pending = mine
    if process ~= me then pending = redis.call('HGET', pending_grants_key, process) end
    pending = joined(pending, fresh)
    redis.call('HSET', pending_grants_key, process, pending)
    if process == me then
      mine = pending
    else
      local push = {now = now, epoch = state.epoch}
      if push_quota[process] == 0 then -- its quota is used up: a command now confirms its grants
        push.at = now
        redis.call('HSET', command_seq_key, process .. ' asked', now)
      end
      redis.call('PUBLISH', channel_prefix .. process, with_grants(cjson.encode(push), fresh))
    end
  end
  if not mine then redis.call('HDEL', pending_grants_key, me) end
  return mine
end

-- When this process must send its next command. Only the process of the waiting head polls when something frees, not a
-- herd; if that is another process, it gets one message, and nil is returned.
local function next_poll_at(outcome)
  if not outcome.wake then
    if state.told then put('told', nil) end
    return nil
  end
  local announced = outcome.head .. ' ' .. outcome.wake
  if outcome.head == me then
    put('told', announced)
    return outcome.wake
  end
  if state.told ~= announced then
    put('told', announced)
    redis.call('PUBLISH', channel_prefix .. outcome.head, cjson.encode({now = now, epoch = state.epoch, at = outcome.wake}))
  end
end
