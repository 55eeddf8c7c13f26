-- tickets: what a ticket says, and many of them in one command.
--
-- A ticket is process.queue.number.tokens, or process.queue.number-name.tokens with the name of its request; `~` stands
-- before that of a slot that cools down. Patterns begin with `^`: others are tried at every character.
local ARGUMENTS = 500 -- of one command; even, as scores and tickets, or names and notes, alternate

local function process_of(ticket)
  return string.match(ticket, '^~?(%x+)%.')
end

local function queue_letter(ticket)
  return string.match(ticket, '^~?%x+%.(%a)%.')
end

local function name_of(ticket)
  local dash = string.find(ticket, '-', 1, true)
  return dash and string.match(ticket, '^(%x+)%.%d+$', dash + 1)
end

local function tokens_of(ticket)
  return tonumber(string.match(ticket, '^.*%.(%d+)$') or 0)
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

-- `scored`: score, ticket, …
local function add_tickets(key, scored)
  in_chunks(scored, function(_, ...) redis.call('ZADD', key, ...) end)
end
