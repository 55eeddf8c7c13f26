-- limits: the operator's limits override the defaults that the first process brought. 0 = no such limit.

-- For fields that the stored defaults lack, because processes of an older version brought them: the defaults of
-- admission/policy.py, where a test compares them.
local FALLBACK = {
  slots = 16, starts = 600, window_ms = 60000, guard_ms = 800, tokens = 0, budget = 0, lease_ms = 8000,
  reserve_slots = 0, reserve_starts = 0, age_ms = 30000, breaker = 20, ramp_ms = 2000, auto = 0,
}

local function read_hash(key)
  local flat, fields = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do fields[flat[i]] = tonumber(flat[i + 1]) end
  return fields
end

-- Returns the limits in force, and those of them that the operator set (nil if none).
local function read_limits()
  local rules, overrides = {rev = 0}, read_hash(limits_key)
  for _, fields in ipairs({FALLBACK, read_hash(defaults_key), overrides}) do
    for field, value in pairs(fields) do rules[field] = value end
  end
  rules.rev = number('defaults_rev') .. '.' .. rules.rev
  return rules, next(overrides) and overrides
end

-- The defaults of the processes that agree on them (owners) are in force until none of those is alive, so that a rolling
-- change of settings takes effect when the last old process ends. Returns true if other defaults are in force. A limit
-- that only one side knows is no difference by itself: the stored one is compared by its fallback.
local function take_defaults(defaults)
  local stored = read_hash(defaults_key)
  local empty, same = next(stored) == nil, true
  for field, value in pairs(defaults) do
    local in_force = stored[field] or FALLBACK[field]
    if in_force ~= value then same = false end
  end
  same = same and not empty
  local owners = {}
  for process in string.gmatch(state.owners or '', '%x+') do
    if process ~= me and redis.call('ZSCORE', last_seen_key, process) and listeners(channel_prefix .. process) > 0 then
      owners[#owners + 1] = process
    end
  end
  if not same and not empty and #owners > 0 then return true end
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
