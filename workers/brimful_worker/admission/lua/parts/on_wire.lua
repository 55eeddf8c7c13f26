-- on_wire: which requests are granted, by name, so that the death of a process counts against those alone.
--
-- A ticket may carry the name of its request: process.queue.number-name.tokens. A process releases what it was granted,
-- however late, for as long as it lives. So a request that is granted while another process has not released it was on the
-- wire when that process died. Requests that only wait leave nothing here.
local KEPT_MS = 7 * 24 * 3600 * 1000

local function name_of(ticket)
  return string.match(ticket, '%-(%x+)%.%d+$')
end

local function read_note(name)
  local note = redis.call('HGET', on_wire_key, name)
  if not note then return nil, 0, 0 end
  local ticket, at, deaths = string.match(note, '^(%S+) (%d+) (%d+)$')
  return ticket or '-', tonumber(at or 0), tonumber(deaths or 0)
end

local function write_note(name, ticket, deaths)
  redis.call('HSET', on_wire_key, name, string.format('%s %.0f %d', ticket, now, deaths))
end

-- The ticket is granted. Returns how many processes have died while they held this request; nil if none, or without a name.
local function note_on_wire(ticket, name)
  if not name or name == '' then return nil end
  local before, _, deaths = read_note(name)
  if before and before ~= '-' and process_of(before) ~= process_of(ticket) then deaths = deaths + 1 end
  write_note(name, ticket, deaths)
  return deaths > 0 and deaths or nil
end

-- The ticket's request has ended. Deaths are remembered until it succeeds, or is given up.
local function note_ended(ticket, name, final)
  if not name or name == '' then return end
  local noted, _, deaths = read_note(name)
  if noted ~= ticket then return end
  if final or deaths == 0 then
    redis.call('HDEL', on_wire_key, name)
  else
    write_note(name, '-', deaths)
  end
end

-- A process has given the ticket's grant to another of its requests, which waits for this answer. Returns its deaths.
local function rename(ticket, name)
  note_ended(ticket, name_of(ticket), false)
  return note_on_wire(ticket, name) or 0
end

-- A process that leaves takes its notes back: it has not died.
local function end_notes_of(process)
  for _, name in ipairs(redis.call('HKEYS', on_wire_key)) do
    local ticket = read_note(name)
    if process_of(ticket) == process then note_ended(ticket, name, false) end
  end
end

-- Requests that nobody asked for again leave their notes: few, and only when a process has died.
local function forget_old_notes()
  for _, name in ipairs(redis.call('HKEYS', on_wire_key)) do
    local _, at = read_note(name)
    if at < now - KEPT_MS then redis.call('HDEL', on_wire_key, name) end
  end
end
