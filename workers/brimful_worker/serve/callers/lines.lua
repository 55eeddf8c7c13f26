-- lines: counts as many of the next lines of a batch, and the tokens they may use, as fit into their caller's limits of any
-- minute. It follows clock.lua and window.lua. KEYS: as of those.
-- ARGV: 1 a name for the lines, 2 the number of the first, 3 most requests, 4 most tokens (0: no limit), 5 JSON array: tokens
-- that each of them may use.
-- Returns how many lines may be asked for now.
local name, first, starts, tokens = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local used, counted = tokens_used(), 0
for _, amount in ipairs(cjson.decode(ARGV[5])) do
  if starts > 0 and requests_used() >= starts then break end
  -- One that may use more than all, as after the limit was lowered, goes alone.
  if tokens > 0 and used > 0 and used + amount > tokens then break end
  local id = name .. '.' .. string.format('%.0f', first + counted)
  if starts > 0 then count_request(id) end
  if tokens > 0 then count_tokens(id, amount) end
  used, counted = used + amount, counted + 1
end
return counted
