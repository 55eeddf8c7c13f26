-- unlogged: what was started while no limit on starts or tokens was set, so that a limit that is set later counts it. A
-- start counts in its slice of the last window, in the state: slice<n> = time of its last grant, starts, tokens. Slices are
-- reused: starts and tokens granted at or before the times unlogged_starts and unlogged_tokens may no longer be in one.
local SLICES, SPAN_LEAST_MS = 32, 60000
local LOGGED_LEAST = 10000 -- the limit may be raised soon after, so more are logged than it allows

local function read_slice(field)
  local at, starts, tokens = string.match(state[field] or '', '^(%d+) (%d+) (%d+)$')
  return tonumber(at or 0), tonumber(starts or 0), tonumber(tokens or 0)
end

local function write_slice(field, at, starts, tokens)
  put(field, starts + tokens > 0 and string.format('%.0f %.0f %.0f', at, starts, tokens) or nil)
end

-- `outcome` as of grant_all.
local function note_unlogged(rules, outcome)
  if rules.starts > 0 and rules.tokens > 0 then return end
  local width = math.ceil(math.max(rules.window_ms + rules.guard_ms, SPAN_LEAST_MS) / (SLICES - 1))
  local field = 'slice' .. math.floor(now / width) % SLICES
  local at, starts, tokens = read_slice(field)
  if at > 0 and now - at > width then
    if starts > 0 then put('unlogged_starts', math.max(number('unlogged_starts'), at)) end
    if tokens > 0 then put('unlogged_tokens', math.max(number('unlogged_tokens'), at)) end
    starts, tokens = 0, 0
  end
  local before = starts + tokens
  if rules.starts == 0 then
    for _, tickets in pairs(outcome.granted) do starts = starts + #tickets end
  end
  if rules.tokens == 0 then
    for _, ticket in ipairs(outcome.noted) do tokens = tokens + tokens_of(ticket) end
  end
  if starts + tokens ~= before then write_slice(field, now, starts, tokens) end
end

-- Moves the slices' starts to the log, each at its slice's end; of very many, the latest.
local function log_starts(rules)
  local slices, left = {}, math.max(rules.starts, LOGGED_LEAST)
  for i = 0, SLICES - 1 do
    local at, starts, tokens = read_slice('slice' .. i)
    if starts > 0 then slices[#slices + 1] = {at, starts} end
    write_slice('slice' .. i, at, 0, tokens)
  end
  table.sort(slices, function(a, b) return a[1] > b[1] end)
  for _, slice in ipairs(slices) do
    for i = 1, math.min(slice[2], left) do
      redis.call('ZADD', starts_key, slice[1], 'unlogged.' .. slice[1] .. '.' .. i)
    end
    left = left - math.min(slice[2], left)
  end
  if state.unlogged_starts then fill_window(rules, number('unlogged_starts'), rules.starts) end
end

local function log_tokens(rules)
  for i = 0, SLICES - 1 do
    local at, starts, tokens = read_slice('slice' .. i)
    if tokens > 0 then add_tokens('unlogged.' .. at, at, tokens) end
    write_slice('slice' .. i, at, starts, 0)
  end
  local at = state.unlogged_tokens
  if at then add_tokens('unlogged.' .. at .. '.all', number('unlogged_tokens'), rules.tokens) end
end

-- Fills the logs of limits that were switched on since the last turn.
local function begin_logs(rules)
  for field, log in pairs({starts = log_starts, tokens = log_tokens}) do
    local logging = state['logs_' .. field]
    if rules[field] > 0 and not logging then
      log(rules)
      put('unlogged_' .. field, nil)
      put('logs_' .. field, 1)
    elseif rules[field] == 0 and logging then
      put('logs_' .. field, nil)
    end
  end
end
