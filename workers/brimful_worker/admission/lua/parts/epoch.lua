-- epoch: a server's unbroken memory. When it is lost or doubtful a new epoch begins, and nothing is granted until every
-- process has said what it holds and what it started (join), or until a lease has passed, by which time every lease
-- of a process that could not say so has ended by that process's own clock.
local function begin_epoch()
  local lease = message.lease_ms
  local newest = redis.call('ZREVRANGE', heard_key, 0, 0, 'WITHSCORES')[2]
  local roster = newest and redis.call('ZCOUNT', heard_key, newest - lease, '+inf') or 0
  redis.call('DEL', start_only_key, interactive_key, batch_key, heard_key, commands_key, pushed_key, inbox_key, workers_key)
  for _, field in ipairs({'told', 'probe', 'seen_used', 'seen_at', 'certain'}) do put(field, nil) end
  put('epoch', message.new_epoch)
  put('server', message.server)
  put('expected', math.max(roster, listeners(everyone)))
  put('opens_at', now + lease)
  if message.uptime_ms < lease then
    -- a young server: processes of before may still be on their way back
    put('opens_at', now + lease - message.uptime_ms)
    if roster > 0 then put('certain', 1) end
  else
    put('certain', 1)
  end
  redis.call('PUBLISH', everyone, cjson.encode({epoch = state.epoch}))
end

-- Registers what the process holds and what it started.
local function join(told)
  redis.call('HDEL', inbox_key, me) -- what it has not taken yet it asks anew
  redis.call('HSET', commands_key, me .. ' seen', redis.call('HGET', pushed_key, me) or 0)
  if told.overrides and redis.call('EXISTS', limits_key) == 0 then
    for field, value in pairs(told.overrides) do redis.call('HSET', limits_key, field, value) end
  end
  local held = {}
  for _, lease in ipairs(told.leases or {}) do held[lease[1]] = true end
  for _, ticket in ipairs(redis.call('ZRANGE', slots_key, 0, -1)) do
    -- a grant that never reached it, or ended while nobody could be told
    if process_of(ticket) == me and not held[ticket] and string.sub(ticket, 1, 1) ~= '~' then
      redis.call('ZREM', slots_key, ticket)
    end
  end
  for ticket in pairs(held) do redis.call('ZADD', slots_key, now + message.lease_ms, ticket) end
  for _, start in ipairs(told.starts or {}) do redis.call('ZADD', starts_key, 'NX', now - start[2], start[1]) end
  for _, entry in ipairs(told.tokens or {}) do
    if redis.call('ZADD', tokens_key, 'NX', now - entry[2], entry[1]) == 1 then
      redis.call('HSET', amounts_key, entry[1], entry[3])
      put('tokens_sum', number('tokens_sum') + entry[3])
    end
  end
  if state.opens_at and told.alive and told.alive > 0 then
    put('certain', 1)
    put('expected', math.max(number('expected'), told.alive))
    local at = now - told.used_age_ms
    if at > number('seen_at') or (at == number('seen_at') and told.used > number('seen_used')) then
      put('seen_at', at)
      put('seen_used', told.used)
    end
  end
  if told.spent then put('spent', math.max(number('spent'), told.spent)) end
end

local function alive(rules)
  return redis.call('ZCOUNT', heard_key, now - rules.lease_ms, '+inf')
end

-- Every process knows at once how many there are, so that after a loss of memory none of them opens too early.
local function tell_alive(rules)
  redis.call('PUBLISH', everyone, cjson.encode({epoch = state.epoch, alive = alive(rules)}))
end

-- Opens when all have joined, or in time. What the window held when it was last seen, and nobody now knows, is put back.
local function open_if_complete(rules)
  local joined = redis.call('ZCARD', heard_key)
  local complete = state.certain and joined >= number('expected') and joined >= listeners(everyone)
  if not complete and now < number('opens_at') then return end
  if rules.starts > 0 and state.seen_used then
    local at = number('seen_at')
    local known = redis.call('ZCOUNT', starts_key, '(' .. (at - rules.window_ms - rules.guard_ms), at)
    for i = 1, number('seen_used') - known do
      redis.call('ZADD', starts_key, at, 'unknown.' .. state.epoch .. '.' .. i)
    end
  end
  for _, field in ipairs({'opens_at', 'certain', 'expected', 'seen_used', 'seen_at'}) do put(field, nil) end
  tell_alive(rules)
end
