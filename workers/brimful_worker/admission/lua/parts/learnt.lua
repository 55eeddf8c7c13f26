-- learnt: limits that are lower than those set, learnt from the provider's refusals (429). One learner for the slots, one
-- for the starts of a window; both are fields of the state, so that all processes believe the same numbers.
--
-- A refusal lowers a limit to what was in use beside it. It is raised by one after a hold. If that is accepted, it grows
-- by its own size every GROWTH_MS, each doubling only once the last one was accepted; if it is refused, the hold doubles,
-- up to two refusals a minute. At the limit set, what was learnt is forgotten.
--
-- A refusal of what has been accepted before may be random, as one of starts always may: it counts once STRIKES of them
-- came without as many acceptances in between. Starts are never lowered by more than a quarter at a time: few of them stand for
-- a whole window.
--
-- Where no number of slots is set (auto), they grow from AUTO_FIRST as far as they are accepted, and as far as it pays: each
-- doubling must bring at least PAYS_SHARE of what it would without queueing at the provider. Its round is compared with the
-- one before by the latency of requests of like size. After one that does not pay, the hold doubles as after a refusal.
--
-- Fields of a learner: level = the limit; at = when it changed; lowered = when it was lowered; hold = milliseconds until
-- it is raised; top = up to where it may grow; full = since when all of it is in use; probing = it was raised, and that was
-- not accepted yet; proven = the most in use with which a request was accepted; strikes, struck, struck_at, cleared =
-- refusals that may be random: how many, with how many in use, when the first came, acceptances since the last; told = a process has logged it; round, before = JSON
-- of the answers of this round and of the one compared with: {size class: [answers, their milliseconds]}; base = the level
-- of that one; slow = what stopped the growth was latency.
local FIRST_HOLD_MS, DOUBTFUL_HOLD_MS, LEAST_HOLD_MS, MOST_HOLD_MS = 10000, 4000, 1000, 30500
local STRIKES, GROWTH_MS, GROWTH_SHARE, FRESH_MS, PROBE_MS = 3, 1000, 1 / 16, 500, 250
local TOLD_AFTER_MS, STARTS_LEAST_SHARE, DOUBTFUL_SHARE, FULL_SHARE = 3000, 0.75, 0.7, 0.9
local AUTO_FIRST, AUTO_MOST, PAYS_SHARE, COMPARED_FROM = 8, 10000, 0.3, 1.5
local FIELDS = {'level', 'at', 'lowered', 'hold', 'top', 'full', 'probing', 'strikes', 'struck', 'struck_at', 'cleared', 'told',
  'round', 'before', 'base', 'slow'}

local function learner(kind)
  local self = {}
  local function has(name) return state[kind .. '_' .. name] ~= nil end
  local function get(name) return number(kind .. '_' .. name) end
  local function set(name, value)
    local field = kind .. '_' .. name
    if value ~= nil or state[field] ~= nil then put(field, value) end
  end

  local function forget_strikes()
    for _, name in ipairs({'strikes', 'struck', 'struck_at', 'cleared'}) do set(name, nil) end
  end

  function self.forget()
    for _, name in ipairs(FIELDS) do set(name, nil) end
  end

  -- The limit in force, where this one is set (0 = none).
  function self.limit(given)
    if not has('level') then return given end
    if given > 0 and get('level') >= given then
      if not has('probing') then self.forget() end
      return given
    end
    return get('level')
  end

  -- A request granted at this time was refused, with so many others in use.
  function self.refused(given, others, granted_at)
    local level = self.limit(given)
    if level == 0 then level = others + 1 end
    local least = math.max(1, kind == 'starts' and given > 0 and math.floor(level * STARTS_LEAST_SHARE) or 1) -- 0 = no limit
    if has('level') and granted_at < get('lowered') then -- of those that were granted together
      set('level', math.max(least, level - 1))
      set('top', get('level'))
      return
    end
    -- not only the first one after a raise: it may find the place of a request whose slot is released a moment late
    local probe = has('probing') and granted_at - get('at') <= PROBE_MS
    -- a window that is nearly full of starts: those of the guard make one too many look accepted at times
    if kind == 'starts' and has('level') and others >= FULL_SHARE * level then probe = true end
    local doubtful = not probe and (kind == 'starts' or has('probing') or self.accepts(others + 1))
    if doubtful then
      if not has('strikes') then set('struck_at', now) end
      set('struck', math.min(has('struck') and get('struck') or math.huge, others + 1))
      set('strikes', get('strikes') + 1)
      set('cleared', nil)
      if has('level') then set('top', get('level')) end
      if get('strikes') < STRIKES then return end
    end
    forget_strikes()
    if probe or has('probing') then
      set('hold', math.min(MOST_HOLD_MS, math.max(FIRST_HOLD_MS, 2 * get('hold'))))
    elseif doubtful or not has('hold') then
      set('hold', doubtful and DOUBTFUL_HOLD_MS or FIRST_HOLD_MS)
    end
    -- of a refusal that came late, what is in use now says little
    if now - granted_at > FRESH_MS and not probe then least = math.max(least, math.floor(level / 2)) end
    if probe or has('probing') then
      others = level - 1
    elseif doubtful and kind == 'slots' then
      others = math.floor(level * DOUBTFUL_SHARE)
    elseif doubtful then
      others = others - STRIKES -- those before were refused too, and one more at the window's edge
    end
    set('level', math.max(least, math.min(level - 1, others)))
    set('top', get('level'))
    set('at', now)
    set('lowered', now)
    set('proven', math.min(get('proven'), get('level')))
    for _, name in ipairs({'probing', 'full', 'round', 'slow'}) do set(name, nil) end
  end

  -- No number is set: learns from few on.
  function self.begin()
    if has('level') then return end
    set('level', math.max(AUTO_FIRST, get('proven')))
    set('top', get('level'))
    set('hold', FIRST_HOLD_MS)
    set('at', now)
    set('probing', 1)
  end

  -- Whether acceptances are to be reported with the times of their grants.
  function self.learning()
    return has('level') or has('strikes')
  end

  -- Whether a request was accepted with so many in use, as far as is known.
  function self.accepts(in_use)
    return get('proven') >= in_use and not has('probing')
  end

  -- Adds an answer to this round. Returns whether the round is complete.
  local function add_to_round(took_ms, size)
    local round, answers = cjson.decode(state[kind .. '_round'] or '{}'), 0
    local class = tostring(math.floor(math.log(math.max(size, 1)) / math.log(2)))
    local sums = round[class] or {0, 0}
    round[class] = {sums[1] + 1, sums[2] + took_ms}
    for _, found in pairs(round) do answers = answers + found[1] end
    set('round', cjson.encode(round))
    return answers >= get('level')
  end

  -- This round's latency divided by that of the round before, among requests of like size; nil if the rounds share no size.
  local function slower_by()
    local took, expected = 0, 0
    local before = cjson.decode(state[kind .. '_before'] or '{}')
    for class, sums in pairs(cjson.decode(state[kind .. '_round'])) do
      if before[class] then
        took, expected = took + sums[2], expected + sums[1] * before[class][2] / before[class][1]
      end
    end
    return expected > 0 and took / expected or nil
  end

  -- A round is complete. Returns whether the slots added since the one before pay.
  local function pays()
    local level, slower = get('level'), slower_by()
    local more = level / math.max(1, get('base'))
    local round = state[kind .. '_round']
    set('round', nil)
    local gain = slower and more / slower
    if slower and more >= COMPARED_FROM and gain < 1 + PAYS_SHARE * (more - 1) then
      set('level', math.max(1, math.min(level - 1, math.floor(get('base') * math.max(1, gain)))))
      set('top', get('level'))
      set('at', now)
      set('hold', math.min(MOST_HOLD_MS, 2 * get('hold')))
      for _, name in ipairs({'probing', 'full'}) do set(name, nil) end
      set('slow', 1)
      return false
    elseif not slower or more >= COMPARED_FROM or more <= 1 then
      set('before', round)
      set('base', level)
    end
    return true
  end

  -- A request granted at this time was answered, with so many in use, its own included. nil: the time is not known.
  -- took_ms and size: of the request, where no number of slots is set. span_ms: for how long a raised limit must hold.
  function self.accepted(in_use, granted_at, took_ms, size, span_ms)
    if not granted_at then
      if self.learning() then return end
      granted_at = now
    end
    if has('strikes') and granted_at > get('struck_at') and in_use >= get('struck') then
      set('cleared', get('cleared') + 1) -- one alone may have ended while one that is refused is in use
      if get('cleared') >= STRIKES then forget_strikes() end
    end
    if in_use > get('proven') and granted_at > get('lowered') then set('proven', in_use) end
    if not has('full') or granted_at < get('full') + (span_ms or 0) or in_use < get('level') or get('top') > get('level') then return end
    if took_ms and not (add_to_round(took_ms, size) and pays()) then return end
    if has('probing') then
      set('probing', nil)
      set('slow', nil)
      if kind == 'slots' then set('hold', math.max(LEAST_HOLD_MS, math.floor(get('hold') / 2))) end
      set('top', 2 * get('level'))
      set('at', now)
    end
  end

  -- All of it is in use, and a request waits: raises it if that is due. Returns by how much; and else, when to ask again.
  function self.grow(given)
    if not has('level') then return 0, nil end
    local level, at = get('level'), get('at')
    local most = given > 0 and given or kind == 'slots' and AUTO_MOST or math.huge
    if not has('full') then set('full', now) end
    local by
    if get('top') > level then
      local pace = GROWTH_MS / level
      local steps = math.min(math.floor((now - at) / pace), math.max(1, math.floor(level * GROWTH_SHARE)))
      by = math.min(steps, get('top') - level, most - level)
      if level >= most then return 0, nil end
      if by < 1 then return 0, math.ceil(at + pace) end
    elseif has('probing') then
      return 0, nil
    elseif now < at + get('hold') then
      return 0, at + get('hold')
    else
      by = 1
      set('top', has('slow') and math.ceil(level * COMPARED_FROM) or level + 1)
    end
    set('level', level + by)
    set('at', now)
    set('probing', 1)
    for _, name in ipairs({'full', 'round'}) do set(name, nil) end
    return by, nil
  end

  -- True once, when a lowered limit has stood for a while.
  function self.to_tell()
    if not has('lowered') or has('told') or now - get('lowered') < TOLD_AFTER_MS then return false end
    set('told', 1)
    return true
  end
  return self
end

local learners = {slots = learner('slots'), starts = learner('starts')}
