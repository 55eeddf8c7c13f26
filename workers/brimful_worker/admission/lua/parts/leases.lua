-- leases: a slot is held for as long as it is renewed. Tickets are never reused, so a late release frees nobody else's
-- slot. `~ticket` keeps the slot of an ended request taken during its cooldown.

-- A set of those tickets that hold a slot.
local function find_held(tickets)
  local held = {}
  in_chunks(tickets, function(first, ...)
    for i, score in ipairs(redis.call('ZMSCORE', slots_key, ...)) do
      if score then held[tickets[first + i - 1]] = true end
    end
  end)
  return held
end

local function reclaim(rules)
  if rules.budget > 0 then
    for _, ticket in ipairs(redis.call('ZRANGEBYSCORE', slots_key, '-inf', now)) do
      if string.sub(ticket, 1, 1) ~= '~' then spend(rules, ticket, -1) end
    end
  end
  redis.call('ZREMRANGEBYSCORE', slots_key, '-inf', now)
end

-- What the process has released since its last turn.
local function release_all(rules, released, lost)
  local tickets, names, final, cooling = {}, {}, {}, {}
  for i, each in ipairs(released) do tickets[i] = each[1] end
  local held = find_held(tickets)
  remove_tickets(slots_key, tickets)
  for i, each in ipairs(released) do
    local ticket, cooldown, verdict, used, undo = each[1], each[2], each[3], each[4], each[5]
    names[i] = each[6] or name_of(ticket) or false
    final[ticket] = verdict == 1 or each[7] == 1
    if undo == 1 then
      redis.call('ZREM', starts_key, ticket)
      if rules.tokens > 0 then drop_tokens(ticket) end
    end
    note_verdict(rules, ticket, verdict)
    if not held[ticket] then
      lost[#lost + 1] = ticket
    else
      held[ticket] = nil
      if undo == 0 then set_usage(rules, ticket, used) end
      if cooldown > 0 then
        cooling[#cooling + 1], cooling[#cooling + 2] = now + cooldown, '~' .. ticket
        put('cooled_at', math.max(number('cooled_at'), now + cooldown))
      end
    end
  end
  add_tickets(slots_key, cooling)
  note_ended(tickets, names, final)
end

local function renew(rules, tickets, lost)
  local ends, scored, changed_count = string.format('%.0f', now + rules.lease_ms), {}, 0
  for i, ticket in ipairs(tickets) do scored[2 * i - 1], scored[2 * i] = ends, ticket end
  -- GT: a lease is never shortened, since its holder may not learn that the limit on it was. Where fewer were changed than
  -- named, some are lost, or were renewed in the same millisecond.
  in_chunks(scored, function(_, ...)
    changed_count = changed_count + redis.call('ZADD', slots_key, 'XX', 'GT', 'CH', ...)
  end)
  if changed_count == #tickets then return end
  local held = find_held(tickets)
  for _, ticket in ipairs(tickets) do
    if not held[ticket] then lost[#lost + 1] = ticket end
  end
end
