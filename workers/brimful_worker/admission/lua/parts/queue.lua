-- queue: the fleet-wide FIFO, interactive before batch. A batch ticket that has waited age_ms gets every
-- TURNS_th grant even while interactive ones wait.
local TURNS, CHUNK_MOST = 4, 256

local function kind_of(ticket)
  return string.match(ticket, '^~?%x+%.(%a)%.')
end

local function is_batch(ticket)
  return kind_of(ticket) == 'b'
end

local function queue_of(ticket)
  local kind = kind_of(ticket)
  return kind == 's' and start_only_key or kind == 'b' and batch_key or interactive_key
end

-- A reader of one queue that passes over tickets whose process cannot be reached now; they keep their place.
local function reader(key, rules)
  local buffer, position, passed, chunk = {}, 1, 0, 8
  local self = {}
  function self.peek()
    while true do
      if position > #buffer then
        buffer, position = redis.call('ZRANGE', key, passed, passed + chunk - 1, 'WITHSCORES'), 1
        chunk = math.min(chunk * 2, CHUNK_MOST)
        if #buffer == 0 then return nil end
      end
      local ticket = buffer[position]
      if reachable(process_of(ticket), rules) then return ticket, tonumber(buffer[position + 1]) end
      passed, position = passed + 1, position + 2
    end
  end
  -- takes the peeked ticket out of the queue
  function self.take()
    redis.call('ZREM', key, buffer[position])
    position = position + 2
  end
  -- leaves it there and goes on to the next
  function self.pass()
    passed, position = passed + 1, position + 2
  end
  return self
end

local function count_batch(key, from)
  local count = 0
  for _, ticket in ipairs(redis.call('ZRANGEBYSCORE', key, from, '+inf')) do
    if is_batch(ticket) then count = count + 1 end
  end
  return count
end

-- What batch may still take beside the reserve; counted only where a reserve is set.
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

-- The head of the queue: its reader and ticket, or nil.
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
