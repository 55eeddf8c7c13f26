-- queue: first come, first served across the fleet, interactive before batch. A batch ticket that has waited for age_ms
-- gets every TURNS-th grant even while interactive ones wait.
local TURNS, CHUNK_MOST = 4, 256
local PARKED = 1e15 -- added to the scores of those whose process is away, so that no turn reads past thousands of them

local function queue_of(ticket)
  local letter = queue_letter(ticket)
  return letter == 's' and start_only_key or letter == 'b' and batch_key or interactive_key
end

-- Adds what the process asks for: a list of {ticket, milliseconds waited}.
local function enqueue(asked)
  local scored = {} -- key → scores and tickets
  for _, each in ipairs(asked) do
    local ticket = each[1]
    local key = queue_of(ticket)
    local list = scored[key] or {}
    list[#list + 1], list[#list + 2] = now - each[2], ticket
    scored[key] = list
  end
  for key, list in pairs(scored) do
    in_chunks(list, function(_, ...) redis.call('ZADD', key, 'NX', ...) end)
  end
end

-- Adds to the scores of the process's tickets that lie in this range; the order among them stays.
local function shift(key, process, from, to, by)
  local scored = {}
  local function write()
    if #scored > 0 then redis.call('ZADD', key, 'XX', unpack(scored)) end
    scored = {}
  end
  local tickets = redis.call('ZRANGEBYSCORE', key, from, to, 'WITHSCORES')
  for i = 1, #tickets, 2 do
    if process_of(tickets[i]) == process then
      scored[#scored + 1] = string.format('%.0f', tonumber(tickets[i + 1]) + by)
      scored[#scored + 1] = tickets[i]
      if #scored >= CHUNK_MOST then write() end
    end
  end
  write()
end

local function park(key, process, from)
  shift(key, process, from, PARKED - 1, PARKED)
  local parked = ids('parked')
  parked[process] = true
  put_ids('parked', parked)
end

-- Puts the tickets of processes that are back in their old places.
local function restore_parked(rules)
  if not state.parked then return end
  local parked = ids('parked')
  for process in pairs(parked) do
    local gone = not redis.call('ZSCORE', last_seen_key, process)
    if gone or reachable(process, rules) or not away[process] then
      for _, key in ipairs({start_only_key, interactive_key, batch_key}) do shift(key, process, PARKED, '+inf', -PARKED) end
      parked[process] = nil
    end
  end
  put_ids('parked', parked)
end

-- An iterator over one queue. It skips tickets whose process cannot be reached now; they keep their place.
local function reader(key, rules)
  local buffer, position, skipped, chunk, ended = {}, 1, 0, 8, false
  local taken, blocked = {}, nil -- not removed yet; a process that can be sent nothing more in this turn
  local self = {}
  function self.peek()
    while not ended do -- in a turn that grants, nothing joins the queue
      local ticket = buffer[position]
      if not ticket then
        buffer, position = redis.call('ZRANGEBYSCORE', key, '-inf', '(' .. PARKED, 'LIMIT', skipped + #taken, chunk), 1
        chunk = math.min(chunk * 2, CHUNK_MOST)
        ended = #buffer == 0
      else
        local process = process_of(ticket)
        if process == blocked then -- which may have hundreds of tickets
          skipped, position = skipped + 1, position + 1
        elseif reachable(process, rules) then
          return ticket
        elseif away[process] then
          park(key, process, self.since())
          buffer, position = {}, 1
        else
          blocked = process
        end
      end
    end
  end
  -- Since when the peeked ticket waits.
  function self.since()
    return tonumber(redis.call('ZSCORE', key, buffer[position]))
  end
  -- Goes on to the next. The peeked ticket is removed from the queue by `write`.
  function self.take()
    taken[#taken + 1] = buffer[position]
    position = position + 1
  end
  function self.write()
    remove_tickets(key, taken)
    taken = {}
  end
  -- Leaves it there and goes on to the next.
  function self.skip()
    skipped, position = skipped + 1, position + 1
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
  local second = batch.peek()
  if second and first then
    local aged = now - batch.since() >= rules.age_ms
    if aged and number('turn') >= TURNS - 1 and room.slots > 0 and room.starts > 0 then return batch, second end
    return interactive, first, aged
  end
  if first then return interactive, first end
  if second then return batch, second end
  return nil
end
