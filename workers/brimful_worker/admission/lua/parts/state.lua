-- state: the HASH of single values. Read once; what changed is written once, at the end.
local state, changed, fields = {}, {}, 0
do
  local flat = redis.call('HGETALL', state_key)
  for i = 1, #flat, 2 do state[flat[i]] = flat[i + 1] end
  fields = #flat / 2
end

-- Numbers are stored as whole numbers; nil removes the field.
local function put(field, value)
  if type(value) == 'number' then value = string.format('%.0f', value) end
  state[field] = value
  changed[field] = true
end

local function number(field)
  local value = state[field]
  return value and tonumber(value) or 0
end

local function save_state()
  local written, removed = {}, {}
  for field in pairs(changed) do
    if state[field] == nil then
      removed[#removed + 1] = field
    else
      written[#written + 1] = field
      written[#written + 1] = state[field]
    end
  end
  if #removed > 0 then redis.call('HDEL', state_key, unpack(removed)) end
  if #written > 0 then redis.call('HSET', state_key, unpack(written)) end
end
