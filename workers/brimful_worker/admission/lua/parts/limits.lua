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
  rules.rev = number('defaults_rev') .. '.' .. rules.rev
  -- batch always keeps one slot and one start to itself, whatever the reserve
  rules.reserve_slots = math.min(rules.reserve_slots, rules.slots - 1)
  if rules.starts > 0 then rules.reserve_starts = math.min(rules.reserve_starts, rules.starts - 1) end
  return rules, overrides
end

-- The defaults of the processes that agree on them (owners) are in force until none of those lives any more, so that a
-- rolling change of settings takes effect with the last old process's end. Returns true when these are not in force.
local function take_defaults(defaults)
  local flat, same = redis.call('HGETALL', defaults_key), true
  for i = 1, #flat, 2 do same = same and defaults[flat[i]] == tonumber(flat[i + 1]) end
  same = same and #flat > 0
  local owners = {}
  for process in string.gmatch(state.owners or '', '%x+') do
    if process ~= me and redis.call('ZSCORE', heard_key, process) and listeners(to .. process) > 0 then
      owners[#owners + 1] = process
    end
  end
  if not same and #flat > 0 and #owners > 0 then return true end
  if not same then
    owners = {}
    redis.call('DEL', defaults_key)
    for field, value in pairs(defaults) do redis.call('HSET', defaults_key, field, value) end
    put('defaults_rev', number('defaults_rev') + 1)
  end
  owners[#owners + 1] = me
  put('owners', table.concat(owners, ' '))
  return nil
end
