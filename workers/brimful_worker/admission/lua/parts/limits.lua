-- limits: what the operator set beats the defaults that the first process brought. 0 = no such limit.
-- Returns the limits in force, and those that the operator set, nil when there are none.
local function read_limits()
  local rules, overrides = {rev = 0}, nil
  local flat = redis.call('HGETALL', defaults_key)
  for i = 1, #flat, 2 do rules[flat[i]] = tonumber(flat[i + 1]) end
  flat = redis.call('HGETALL', limits_key)
  for i = 1, #flat, 2 do
    overrides = overrides or {}
    overrides[flat[i]] = tonumber(flat[i + 1])
    rules[flat[i]] = overrides[flat[i]]
  end
  -- batch always keeps one slot and one start to itself, whatever the reserve
  rules.reserve_slots = math.min(rules.reserve_slots, rules.slots - 1)
  if rules.starts > 0 then rules.reserve_starts = math.min(rules.reserve_starts, rules.starts - 1) end
  return rules, overrides
end

-- Returns true when others' defaults are in force and these differ.
local function take_defaults(defaults)
  local current, others = redis.call('HGETALL', defaults_key), redis.call('ZCARD', heard_key) - 1
  if #current > 0 and others > 0 then
    for i = 1, #current, 2 do
      if defaults[current[i]] ~= tonumber(current[i + 1]) then return true end
    end
    return nil
  end
  redis.call('DEL', defaults_key)
  for field, value in pairs(defaults) do redis.call('HSET', defaults_key, field, value) end
  return nil
end
