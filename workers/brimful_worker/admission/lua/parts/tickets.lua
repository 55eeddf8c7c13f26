-- tickets: what a ticket says, and many of them in one command.
--
-- A ticket is process.queue.number.tokens, or process.queue.number-name.tokens with the name of its request; `~` stands
-- before that of a slot that cools down.
local ARGUMENTS = 500 -- of one command; even, as scores and tickets, or names and notes, alternate

-- Ticket → {process, queue, name or false, tokens} of those that a turn looks at several times.
local parsed = {}
local function parse(ticket)
  local process, queue, dash, name, tokens = string.match(ticket, '^(%x+)%.(%a)%.%d+(%-?)(%x*)%.(%d+)$')
  if process then parsed[ticket] = {process, queue, dash ~= '' and name ~= '' and name, tonumber(tokens)} end
end

local function process_of(ticket)
  local known = parsed[ticket]
  return known and known[1] or string.match(ticket, '^~?(%x+)%.')
end

local function queue_letter(ticket)
  local known = parsed[ticket]
  return known and known[2] or string.match(ticket, '^~?%x+%.(%a)%.')
end

local function name_of(ticket)
  local known = parsed[ticket]
  if known then return known[3] or nil end
  return string.match(ticket, '%-(%x+)%.%d+$')
end

local function tokens_of(ticket)
  local known = parsed[ticket]
  return known and known[4] or tonumber(string.match(ticket, '%.(%d+)$') or 0)
end

-- Calls use(number of the first, argument, …) until all arguments have been used.
local function in_chunks(arguments, use)
  for first = 1, #arguments, ARGUMENTS do
    use(first, unpack(arguments, first, math.min(first + ARGUMENTS - 1, #arguments)))
  end
end

local function remove_tickets(key, tickets)
  in_chunks(tickets, function(_, ...) redis.call('ZREM', key, ...) end)
end

-- A list of score, ticket, …
local function add_tickets(key, scored)
  in_chunks(scored, function(_, ...) redis.call('ZADD', key, ...) end)
end
