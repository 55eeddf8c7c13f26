-- leases: a slot is held for as long as it is renewed. Tickets are never reused, so a late release frees nobody else's
-- slot. `~ticket` keeps the slot of an ended request taken during its cooldown.
local CHUNK = 1000

local function reclaim(rules)
  if rules.budget > 0 then
    for _, ticket in ipairs(redis.call('ZRANGEBYSCORE', slots_key, '-inf', now)) do
      if string.sub(ticket, 1, 1) ~= '~' then spend(rules, ticket, -1) end
    end
  end
  redis.call('ZREMRANGEBYSCORE', slots_key, '-inf', now)
end

local function release(rules, ended, lost)
  local ticket, cooldown, verdict, used, undo = ended[1], ended[2], ended[3], ended[4], ended[5]
  if undo == 1 then
    redis.call('ZREM', starts_key, ticket)
    if rules.tokens > 0 then drop_tokens(ticket) end
  end
  note_verdict(rules, ticket, verdict)
  if redis.call('ZREM', slots_key, ticket) == 0 then
    lost[#lost + 1] = ticket
    return
  end
  if undo == 0 then set_usage(rules, ticket, used) end
  if cooldown > 0 then
    redis.call('ZADD', slots_key, now + cooldown, '~' .. ticket)
    put('cooled_at', math.max(number('cooled_at'), now + cooldown))
  end
end

-- What the process has released since its last turn.
local function release_all(rules, released, lost)
  local ended = {}
  for _, each in ipairs(released) do
    release(rules, each, lost)
    ended[#ended + 1] = {each[1], each[6] or name_of(each[1]), each[3] == 1 or each[7] == 1}
  end
  note_ended(ended)
end

-- Appends those tickets that hold no slot any more.
local function find_lost(tickets, lost)
  for i, score in ipairs(redis.call('ZMSCORE', slots_key, unpack(tickets))) do
    if not score then lost[#lost + 1] = tickets[i] end
  end
end

local function renew(rules, tickets, lost)
  local ends = string.format('%.0f', now + rules.lease_ms)
  for first = 1, #tickets, CHUNK do
    local some, scored = {}, {}
    for i = first, math.min(first + CHUNK - 1, #tickets) do
      some[#some + 1] = tickets[i]
      scored[2 * #some - 1], scored[2 * #some] = ends, tickets[i]
    end
    -- GT: a lease is never shortened, since its holder may not learn that the limit on it was. Where fewer were changed than
    -- named, some are lost, or were renewed in the same millisecond.
    if redis.call('ZADD', slots_key, 'XX', 'GT', 'CH', unpack(scored)) < #some then find_lost(some, lost) end
  end
end
