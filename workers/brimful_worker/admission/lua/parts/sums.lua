-- sums: how many entries each key had at the end of the last turn, kept in the state. A key that has fewer was evicted,
-- deleted or truncated since: the fleet's memory is lost in part, and a new epoch begins.
--
-- Older versions keep no sums. Their turns write `last` without MARK, and nothing is compared after them.
local shrunken = {} -- name → true of the keys that have lost something since the last turn
local limits_sum, save_with_sums
do
  local MARK = '0'
  local COUNTED = {
    {'slots', 'ZCARD', slots_key}, {'starts', 'ZCARD', starts_key}, {'tokens', 'ZCARD', tokens_key},
    {'token_amounts', 'HLEN', token_amounts_key}, {'defaults', 'HLEN', defaults_key},
    {'last_seen', 'ZCARD', last_seen_key}, {'command_seq', 'HLEN', command_seq_key}, {'grant_seq', 'HLEN', grant_seq_key},
    {'pending_grants', 'HLEN', pending_grants_key}, {'workers', 'HLEN', workers_key},
    {'start_only', 'ZCARD', start_only_key}, {'interactive', 'ZCARD', interactive_key}, {'batch', 'ZCARD', batch_key},
  }

  -- -1 if the key is of another type.
  local function count_entries(counted)
    local entries = redis.pcall(counted[2], counted[3])
    return type(entries) == 'number' and entries or -1
  end

  -- The revision of the operator's limits, and how many there are: they are changed outside this script, each time under a
  -- higher revision.
  function limits_sum()
    return tonumber(redis.call('HGET', limits_key, 'rev') or 0), redis.call('HLEN', limits_key)
  end

  if string.sub(state.last or '', 1, 1) == MARK then
    local recorded = {}
    for count in string.gmatch(state.sums or '', '%d+') do recorded[#recorded + 1] = tonumber(count) end
    if #recorded ~= #COUNTED + 3 or fields < recorded[1] then shrunken.state = true end
    local rev, limits = limits_sum()
    if rev < (recorded[2] or 0) or (rev == recorded[2] and limits < (recorded[3] or 0)) then shrunken.limits = true end
    for i, counted in ipairs(COUNTED) do
      if count_entries(counted) < (recorded[i + 3] or 0) then shrunken[counted[1]] = true end
    end
  elseif not state.last and (state.sums or not state.epoch) then
    shrunken.state = true
  end

  -- Writes the state with its sums. Nothing may be written after it.
  function save_with_sums()
    local rev, limits = limits_sum()
    local counts = {0, rev, limits}
    for i, counted in ipairs(COUNTED) do counts[i + 3] = count_entries(counted) end
    state.last, changed.last = MARK .. state.last, true
    state.sums = state.sums or ''
    for _ in pairs(state) do counts[1] = counts[1] + 1 end
    local sums = table.concat(counts, ' ')
    if sums ~= state.sums then put('sums', sums) end
    save_state()
  end
end
