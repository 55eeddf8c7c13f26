-- tokens: the token window (estimated at the grant, corrected by usage) and the token budget (held while a request runs,
-- spent when it ends). Neither costs anything unless its limit is set.
local function add_tokens(ticket, at, amount)
  if redis.call('ZADD', tokens_key, 'NX', at, ticket) == 0 then return end
  redis.call('HSET', token_amounts_key, ticket, amount)
  put('tokens_sum', number('tokens_sum') + amount)
end

local function drop_tokens(ticket)
  if redis.call('ZREM', tokens_key, ticket) == 0 then return end
  put('tokens_sum', number('tokens_sum') - tonumber(redis.call('HGET', token_amounts_key, ticket) or 0))
  redis.call('HDEL', token_amounts_key, ticket)
end

local function trim_tokens(rules)
  if rules.tokens == 0 then return end
  local horizon = now - rules.window_ms - rules.guard_ms
  for _, ticket in ipairs(redis.call('ZRANGEBYSCORE', tokens_key, '-inf', horizon)) do drop_tokens(ticket) end
end

local function spend(rules, ticket, used)
  if rules.budget > 0 then put('spent', number('spent') + (used >= 0 and used or tokens_of(ticket))) end
end

local function set_usage(rules, ticket, used)
  spend(rules, ticket, used)
  if rules.tokens == 0 or used < 0 then return end
  local before = tonumber(redis.call('HGET', token_amounts_key, ticket) or nil)
  if before then
    redis.call('HSET', token_amounts_key, ticket, used)
    put('tokens_sum', number('tokens_sum') + used - before)
  end
end

-- When the ticket fits the token window; nil if it does now. It always fits an empty one: it could never run otherwise.
local function tokens_fit_at(rules, ticket)
  if rules.tokens == 0 then return nil end
  local sum = number('tokens_sum')
  local excess = sum + tokens_of(ticket) - rules.tokens
  if excess <= 0 or sum <= 0 then return nil end
  local entries = redis.call('ZRANGE', tokens_key, 0, -1, 'WITHSCORES')
  local at = now
  for i = 1, #entries, 2 do
    excess = excess - tonumber(redis.call('HGET', token_amounts_key, entries[i]) or 0)
    at = tonumber(entries[i + 1])
    if excess <= 0 then break end
  end
  return at + rules.window_ms + rules.guard_ms
end

-- What running requests hold of the budget: counted once a turn, then kept up with what is granted.
local held_of_budget, running
local function hold_of_budget(ticket)
  if held_of_budget then held_of_budget, running = held_of_budget + tokens_of(ticket), true end
end

-- "fits"; "wait": requests in flight hold what it needs; "never": it does not fit, and nothing is in flight.
local function budget_verdict(rules, ticket)
  if rules.budget == 0 then return 'fits' end
  if not held_of_budget then
    held_of_budget, running = 0, false
    for _, holder in ipairs(redis.call('ZRANGE', slots_key, 0, -1)) do
      if string.sub(holder, 1, 1) ~= '~' then
        held_of_budget = held_of_budget + tokens_of(holder)
        running = true
      end
    end
  end
  if number('spent') + held_of_budget + tokens_of(ticket) <= rules.budget then return 'fits' end
  return running and 'wait' or 'never'
end
