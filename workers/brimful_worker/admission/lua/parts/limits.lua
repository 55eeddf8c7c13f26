-- limits: what the operator set beats the defaults that the first process brought. 0 = no such limit.
local function read_limits()
  local rules = {rev = 0}
  for _, key in ipairs({defaults_key, limits_key}) do
    local flat = redis.call('HGETALL', key)
    for i = 1, #flat, 2 do rules[flat[i]] = tonumber(flat[i + 1]) end
  end
  -- batch always keeps one slot and one start to itself, whatever the reserve
  rules.reserve_slots = math.min(rules.reserve_slots, rules.slots - 1)
  if rules.starts > 0 then rules.reserve_starts = math.min(rules.reserve_starts, rules.starts - 1) end
  return rules
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
