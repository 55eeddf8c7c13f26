-- grants: slot and start together, for as long as the limits allow; then who gets them, and who comes again when.
local LOG_LEAST_MS = 60000

local function add_grant(outcome, ticket)
  local process = process_of(ticket)
  local tickets = outcome.granted[process] or {}
  tickets[#tickets + 1] = ticket
  outcome.granted[process] = tickets
  room_to_push[process] = room_to_push[process] - 1
end

-- When so many starts have left the window that there is room for one more.
local function room_at(rules, used, window)
  local leaves = math.max(0, used - rules.starts)
  return redis.call('ZRANGEBYSCORE', starts_key, '(' .. (now - window), '+inf', 'WITHSCORES', 'LIMIT', leaves, 1)[2] + window
end

-- Starts without a slot, of who holds a slot already. Returns true when one must wait: nothing else can be granted then.
local function grant_starts(rules, outcome, window)
  local waiting = reader(start_only_key, rules)
  while true do
    local ticket = waiting.peek()
    if not ticket then return false end
    local later = closed_until()
    if not later and rules.starts > 0 and outcome.used >= rules.starts then
      later = room_at(rules, outcome.used, window)
    end
    if later then
      outcome.head, outcome.wake = process_of(ticket), later
      return true
    end
    waiting.take()
    if rules.starts > 0 then
      redis.call('ZADD', starts_key, now, ticket)
      outcome.used = outcome.used + 1
    end
    add_grant(outcome, ticket)
  end
end

-- Returns granted {process → [ticket]}, refused [ticket], used, and when stopped: head (a process) and wake (a time).
local function grant_all(rules)
  local window = rules.window_ms + rules.guard_ms
  local outcome = {granted = {}, refused = {}, used = 0}
  local free = rules.slots - redis.call('ZCARD', slots_key)
  if rules.starts > 0 then
    -- kept at least a minute, so that a window made longer while it runs knows what it held; and all that is told while
    -- an epoch is being opened, so that an older look at the window can be recounted
    if not state.opens_at then
      redis.call('ZREMRANGEBYSCORE', starts_key, '-inf', now - math.max(window, LOG_LEAST_MS))
    end
    outcome.used = redis.call('ZCOUNT', starts_key, '(' .. (now - window), '+inf')
  end
  if grant_starts(rules, outcome, window) then return outcome end
  trim_tokens(rules)
  local interactive, batch = reader(interactive_key, rules), reader(batch_key, rules)
  local room
  while true do
    room = room or batch_room(rules)
    local queue, ticket, aged = choose(rules, interactive, batch, room)
    if not ticket then return outcome end
    outcome.head = process_of(ticket)
    local allowed, later = allowance(rules)
    local budget = budget_verdict(rules, ticket)
    if allowed <= 0 then
      outcome.wake = later
      return outcome
    elseif free <= 0 or (queue == batch and room.slots <= 0) then
      outcome.wake = tonumber(redis.call('ZRANGE', slots_key, 0, 0, 'WITHSCORES')[2])
      if outcome.wake and outcome.wake > now + rules.lease_ms / 3 then outcome.wake = nil end
      return outcome
    elseif rules.starts > 0 and outcome.used >= rules.starts or (queue == batch and room.starts <= 0) then
      outcome.wake = room_at(rules, outcome.used, window)
      return outcome
    elseif budget == 'wait' then
      return outcome
    elseif budget == 'never' and outcome.head ~= me then
      outcome.wake = now -- it must come and hear it itself
      return outcome
    elseif budget == 'never' then
      queue.pass() -- its process cancels it when it has heard
      outcome.refused[#outcome.refused + 1] = ticket
    else
      local fits_at = tokens_fit_at(rules, ticket)
      if fits_at then
        outcome.wake = fits_at
        return outcome
      end
      queue.take()
      redis.call('ZADD', slots_key, now + rules.lease_ms, ticket)
      if rules.starts > 0 then redis.call('ZADD', starts_key, now, ticket) end
      log_tokens(rules, ticket)
      hold_of_budget(ticket)
      note_granted(ticket)
      free = free - 1
      if rules.starts > 0 then outcome.used = outcome.used + 1 end
      if queue == batch then
        room.slots, room.starts = room.slots - 1, room.starts - 1
        if state.turn then put('turn', nil) end
      elseif aged then
        put('turn', number('turn') + 1)
      end
      add_grant(outcome, ticket)
    end
  end
end

-- Numbers the grants and puts them into inboxes, where they stay until they are confirmed; publishes those of others.
-- Returns all that is in this process's inbox.
local function deliver(granted)
  local mine = cjson.decode(redis.call('HGET', inbox_key, me) or '[]')
  local unseen = {}
  for _, grant in ipairs(mine) do
    if grant[1] > message.seen then unseen[#unseen + 1] = grant end
  end
  if not granted[me] and #unseen < #mine then
    if #unseen == 0 then
      redis.call('HDEL', inbox_key, me)
    else
      redis.call('HSET', inbox_key, me, cjson.encode(unseen))
    end
  end
  for process, tickets in pairs(granted) do
    local last = redis.call('HINCRBY', pushed_key, process, #tickets)
    local fresh = {}
    for i, ticket in ipairs(tickets) do fresh[i] = {last - #tickets + i, ticket, now} end
    local inbox = process == me and unseen or cjson.decode(redis.call('HGET', inbox_key, process) or '[]')
    for _, grant in ipairs(fresh) do inbox[#inbox + 1] = grant end
    redis.call('HSET', inbox_key, process, cjson.encode(inbox))
    if process ~= me then
      local push = {now = now, epoch = state.epoch, grants = fresh}
      if room_to_push[process] == 0 then push.at = now end -- it must confirm before it gets more
      redis.call('PUBLISH', to .. process, cjson.encode(push))
    end
  end
  return #unseen > 0 and unseen or nil
end

-- When this process must come again. Only the head's process comes at the time something frees: no herd. When that is
-- another one, it is told once.
local function come_again(outcome)
  if not outcome.wake then
    if state.told then put('told', nil) end
    return nil
  end
  if outcome.head == me then
    put('told', me .. ' ' .. outcome.wake)
    return outcome.wake
  end
  local told = outcome.head .. ' ' .. outcome.wake
  if state.told ~= told then
    put('told', told)
    redis.call('PUBLISH', to .. outcome.head, cjson.encode({now = now, epoch = state.epoch, at = outcome.wake}))
  end
  return nil
end
