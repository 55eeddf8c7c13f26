-- queue: first come, first served across the fleet, interactive before batch. A batch ticket that has waited for age_ms
-- gets every TURNS-th grant even while interactive ones wait.
local TURNS, CHUNK_MOST = 4, 256

local function queue_letter(ticket)
  return string.match(ticket, '^~?%x+%.(%a)%.')
end

local function queue_of(ticket)
  local letter = queue_letter(ticket)
  return letter == 's' and start_only_key or letter == 'b' and batch_key or interactive_key
end

-- An iterator over one queue. It skips tickets whose process cannot be reached now; they keep their place.
local function reader(key, rules)
  local buffer, position, skipped, chunk = {}, 1, 0, 8
  local self = {}
  function self.peek()
    while true do
      if position > #buffer then
        buffer, position = redis.call('ZRANGE', key, skipped, skipped + chunk - 1, 'WITHSCORES'), 1
        chunk = math.min(chunk * 2, CHUNK_MOST)
        if #buffer == 0 then return nil end
      end
      local ticket = buffer[position]
      if reachable(process_of(ticket), rules) then return ticket, tonumber(buffer[position + 1]) end
      self.skip()
    end
  end
  -- Removes the peeked ticket from the queue.
  function self.take()
    redis.call('ZREM', key, buffer[position])
    position = position + 2
  end
  -- Leaves it there and goes on to the next.
  function self.skip()
    skipped, position = skipped + 1, position + 2
  end
  return self
end

local function count_batch(key, from)
  local count = 0
  for _, ticket in ipairs(redis.call('ZRANGEBYSCORE', key, from, '+inf')) do
    if queue_letter(ticket) == 'b' then count = count + 1 end
  end
  return count
end

-- How many slots and starts batch may still take without touching the reserve; counted only where a reserve is set.
local function batch_room(rules)
  local slots, starts = math.huge, math.huge
  if rules.reserve_slots > 0 then
    slots = rules.slots - rules.reserve_slots - count_batch(slots_key, '-inf')
  end
  if rules.reserve_starts > 0 and rules.starts > 0 then
    local from = '(' .. (now - rules.window_ms - rules.guard_ms)
    starts = rules.starts - rules.reserve_starts - count_batch(starts_key, from)
  end
  return {slots = slots, starts = starts}
end

-- The next ticket to be granted: its reader, itself, and whether an aged batch ticket stands back for it; nil if none.
local function choose(rules, interactive, batch, room)
  local first = interactive.peek()
  local second, since = batch.peek()
  if second and first then
    local aged = now - since >= rules.age_ms
    if aged and number('turn') >= TURNS - 1 and room.slots > 0 and room.starts > 0 then return batch, second end
    return interactive, first, aged
  end
  if first then return interactive, first end
  if second then return batch, second end
  return nil
end
