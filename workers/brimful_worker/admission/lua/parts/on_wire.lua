-- on_wire: which requests are granted, by name, so that the death of a process counts against those alone.
--
-- A ticket may carry the name of its request: process.queue.number-name.tokens. A process releases what it was granted,
-- however late, for as long as it lives. So a request that is granted while another process has not released it was on the
-- wire when that process died. Requests that only wait leave nothing here.
local KEPT_MS = 7 * 24 * 3600 * 1000

local function read_note(note)
  if not note then return nil, 0, 0 end
  local ticket, at, deaths = string.match(note, '^(%S+) (%d+) (%d+)$')
  return ticket or '-', tonumber(at or 0), tonumber(deaths or 0)
end

local function write_notes(command, arguments)
  in_chunks(arguments, function(_, ...) redis.call(command, on_wire_key, ...) end)
end

-- Name → note. `names`: of requests, of which some have none (false, or empty).
local function read_notes(names)
  local given, notes = {}, {}
  for _, name in ipairs(names) do
    if name and name ~= '' then given[#given + 1] = name end
  end
  in_chunks(given, function(first, ...)
    for i, note in ipairs(redis.call('HMGET', on_wire_key, ...)) do notes[given[first + i - 1]] = note end
  end)
  return notes
end

local now_text = string.format(' %.0f ', now)
local function note_text(ticket, deaths)
  return ticket .. now_text .. deaths
end

-- These tickets were granted to requests with these names. Returns ticket → how many processes have died while they held its
-- request, of those that have a name, and if there were any.
local function note_on_wire(tickets, names)
  local notes, deaths_of, written = read_notes(names), {}, {}
  for i, ticket in ipairs(tickets) do
    local name = names[i]
    if name and notes[name] ~= nil then
      local before, _, deaths = read_note(notes[name])
      if before and before ~= '-' and process_of(before) ~= process_of(ticket) then deaths = deaths + 1 end
      notes[name] = note_text(ticket, deaths)
      written[#written + 1], written[#written + 2] = name, notes[name]
      if deaths > 0 then deaths_of[ticket] = deaths end
    end
  end
  write_notes('HSET', written)
  return deaths_of
end

-- The requests with these names, which held these tickets, have ended. Deaths are remembered until a request succeeds, or is
-- given up: those are in `final`, a set of tickets.
local function note_ended(tickets, names, final)
  local notes, written, removed = read_notes(names), {}, {}
  for i, ticket in ipairs(tickets) do
    local name = names[i]
    local note = name and notes[name]
    if note and string.find(note, ticket .. ' ', 1, true) == 1 then
      local _, _, deaths = read_note(not final[ticket] and note)
      if deaths == 0 then
        removed[#removed + 1] = name
      else
        written[#written + 1], written[#written + 2] = name, note_text('-', deaths)
      end
    end
  end
  write_notes('HDEL', removed)
  write_notes('HSET', written)
end

-- A process has given the ticket's grant to another of its requests, which waits for this answer. Returns its deaths.
local function rename(ticket, name)
  note_ended({ticket}, {name_of(ticket)}, {})
  return note_on_wire({ticket}, {name})[ticket] or 0
end

-- All notes: a list of {ticket, name, at}.
local function all_notes()
  local flat, notes = redis.call('HGETALL', on_wire_key), {}
  for i = 1, #flat, 2 do
    local ticket, at = read_note(flat[i + 1])
    notes[#notes + 1] = {ticket, flat[i], at}
  end
  return notes
end

-- A process that leaves takes its notes back: it has not died.
local function end_notes_of(process)
  local tickets, names = {}, {}
  for _, note in ipairs(all_notes()) do
    if process_of(note[1]) == process then tickets[#tickets + 1], names[#names + 1] = note[1], note[2] end
  end
  note_ended(tickets, names, {})
end

-- Requests that nobody asked for again leave their notes: few, and only when a process has died.
local function forget_old_notes()
  local old = {}
  for _, note in ipairs(all_notes()) do
    if note[3] < now - KEPT_MS then old[#old + 1] = note[2] end
  end
  write_notes('HDEL', old)
end
