-- learnt: limits lower than those set, learnt from the provider's refusals (429): additive increase, multiplicative
-- decrease. One learner for the slots and one for the starts of a window. Both are fields of the state, so that all
-- processes use the same numbers.
--
-- Decrease: a refusal lowers the limit to what was in use beside the refused request. If as many were accepted before, the
-- refusal may be random, as any refusal of a start may be: only REFUSALS_LEAST of them, without as many acceptances in between,
-- lower the limit. Starts are lowered by a quarter at a time at most, since few starts stand for a whole window.
--
-- Increase: after a hold the limit is raised by one. If that is accepted, it doubles every GROWTH_MS for as long as each
-- doubling is accepted. If it is refused, the hold doubles, up to MOST_HOLD_MS: two refusals a minute. At the limit that is
-- set, what was learnt is forgotten.
--
-- Without a set number of slots (auto) the limit grows from AUTO_FIRST, and a doubling must also pay: bring at least
-- PAYS_SHARE of the throughput that it would bring if no request waited at the provider. That follows from the latency of a
-- round of requests, compared with the round before by sizes. After a doubling that does not pay, the hold doubles too.
local FIRST_HOLD_MS, DOUBTFUL_HOLD_MS, LEAST_HOLD_MS, MOST_HOLD_MS = 10000, 4000, 1000, 30500
local REFUSALS_LEAST, GROWTH_MS, GROWTH_SHARE, FRESH_MS, PROBE_MS = 3, 1000, 1 / 16, 500, 250
local LOGGED_AFTER_MS, STARTS_LEAST_SHARE, DOUBTFUL_SHARE, FULL_SHARE = 3000, 0.75, 0.7, 0.9
local AUTO_FIRST, AUTO_MOST, PAYS_SHARE, COMPARED_FROM = 8, 10000, 0.3, 1.5

-- A learner's fields by the names used here, and their names in the state, which other versions read. Times are in
-- milliseconds of the admission's clock.
local FIELDS = {
  level = 'level', -- the limit
  changed_at = 'at',
  lowered_at = 'lowered',
  hold_ms = 'hold', -- from the last change until the limit is raised
  ceiling = 'top', -- up to where the limit may grow now
  full_since = 'full', -- since when all of it has been in use
  probing = 'probing', -- 1 = raised, and no request was accepted at this level yet
  refusals = 'strikes', -- number of refusals that may be random
  refused_in_use = 'struck', -- the least in use at one of those
  refused_since = 'struck_at', -- when the first of those came
  accepted_since = 'cleared', -- acceptances since the last of those
  logged = 'told', -- 1 = a process has logged the lower limit
  round = 'round', -- JSON of the answers at this level: {size class: [answers, their milliseconds]}
  compared_round = 'before', -- the same of the round that this one is compared with
  compared_level = 'base', -- the level of that round
  slow = 'slow', -- 1 = growth was stopped by the latency
}
local MOST_ACCEPTED = 'proven' -- the most in use at which a request was accepted; outlasts the other fields
-- What the processes keep, in case the server forgets it.
local KEPT, KEPT_TIMES = {'level', 'hold_ms', 'ceiling', 'probing', 'logged'}, {'changed_at', 'lowered_at'}

local function learner(kind)
  local self = {}
  local function field(name) return kind .. '_' .. (FIELDS[name] or MOST_ACCEPTED) end
  local function has(name) return state[field(name)] ~= nil end
  local function get(name) return number(field(name)) end
  local function set(name, value)
    if value ~= nil or has(name) then put(field(name), value) end
  end
  local function clear(...)
    for _, name in ipairs({...}) do set(name, nil) end
  end

  local function forget_refusals()
    clear('refusals', 'refused_in_use', 'refused_since', 'accepted_since')
  end

  function self.forget()
    for name in pairs(FIELDS) do set(name, nil) end
  end

  -- The limit in force, where this one is set (0 = none).
  function self.limit(given)
    if not has('level') then return given end
    if given > 0 and get('level') >= given then
      if not has('probing') or get('level') > given then self.forget() end
      return given
    end
    return get('level')
  end

  -- A request granted at this time was refused, with so many others in use.
  function self.refused(given, others, granted_at)
    local level = self.limit(given)
    if level == 0 then level = others + 1 end
    local least = math.max(1, kind == 'starts' and given > 0 and math.floor(level * STARTS_LEAST_SHARE) or 1) -- 0 = no limit
    if has('level') and granted_at < get('lowered_at') then -- another of those that were granted together
      set('level', math.max(least, level - 1))
      set('ceiling', get('level'))
      return
    end
    -- Not only the first request after a raise counts as its probe: that one may get the place of a request whose slot is
    -- released a moment late.
    local probe = has('probing') and granted_at - get('changed_at') <= PROBE_MS
    -- In a nearly full window, starts of the guard can make one too many look accepted.
    if kind == 'starts' and has('level') and others >= FULL_SHARE * level then probe = true end
    local doubtful = not probe and (kind == 'starts' or has('probing') or self.accepts(others + 1))
    if doubtful then
      if not has('refusals') then set('refused_since', now) end
      set('refused_in_use', math.min(has('refused_in_use') and get('refused_in_use') or math.huge, others + 1))
      set('refusals', get('refusals') + 1)
      set('accepted_since', nil)
      if has('level') then set('ceiling', get('level')) end
      if get('refusals') < REFUSALS_LEAST then return end
    end
    forget_refusals()
    if probe or has('probing') then
      set('hold_ms', math.min(MOST_HOLD_MS, math.max(FIRST_HOLD_MS, 2 * get('hold_ms'))))
    elseif doubtful or not has('hold_ms') then
      set('hold_ms', doubtful and DOUBTFUL_HOLD_MS or FIRST_HOLD_MS)
    end
    -- When a refusal came late, what is in use now says little about it.
    if now - granted_at > FRESH_MS and not probe then least = math.max(least, math.floor(level / 2)) end
    if probe or has('probing') then
      others = level - 1
    elseif doubtful and kind == 'slots' then
      others = math.floor(level * DOUBTFUL_SHARE)
    elseif doubtful then
      others = others - REFUSALS_LEAST -- the earlier ones were refused too, and one more at the window's edge
    end
    set('level', math.max(least, math.min(level - 1, others)))
    set('ceiling', get('level'))
    set('changed_at', now)
    set('lowered_at', now)
    set('most_accepted', math.min(get('most_accepted'), get('level')))
    clear('probing', 'full_since', 'round', 'slow')
  end

  -- No number is set: starts from a few.
  function self.begin()
    if has('level') then return end
    set('level', math.max(AUTO_FIRST, get('most_accepted')))
    set('ceiling', get('level'))
    set('hold_ms', FIRST_HOLD_MS)
    set('changed_at', now)
    set('probing', 1)
  end

  -- Whether processes must report when accepted requests were granted.
  function self.learning()
    return has('level') or has('refusals')
  end

  -- Whether a request was accepted with so many in use, as far as is known.
  function self.accepts(in_use)
    return get('most_accepted') >= in_use and not has('probing')
  end

  -- Adds an answer to this round. Returns whether the round is complete.
  local function add_to_round(took_ms, size)
    local round, answers = cjson.decode(state[field('round')] or '{}'), 0
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
    local before = cjson.decode(state[field('compared_round')] or '{}')
    for class, sums in pairs(cjson.decode(state[field('round')])) do
      if before[class] then
        took, expected = took + sums[2], expected + sums[1] * before[class][2] / before[class][1]
      end
    end
    return expected > 0 and took / expected or nil
  end

  -- A round is complete. Returns whether the slots added since the one before pay.
  local function pays()
    local level, slower = get('level'), slower_by()
    local more = level / math.max(1, get('compared_level'))
    local round = state[field('round')]
    set('round', nil)
    local gain = slower and more / slower
    if slower and more >= COMPARED_FROM and gain < 1 + PAYS_SHARE * (more - 1) then
      set('level', math.max(1, math.min(level - 1, math.floor(get('compared_level') * math.max(1, gain)))))
      set('ceiling', get('level'))
      set('changed_at', now)
      set('hold_ms', math.min(MOST_HOLD_MS, 2 * get('hold_ms')))
      clear('probing', 'full_since')
      set('slow', 1)
      return false
    elseif not slower or more >= COMPARED_FROM or more <= 1 then
      set('compared_round', round)
      set('compared_level', level)
    end
    return true
  end

  -- A request granted at this time (nil = not known) was accepted, with so many in use, its own included. took_ms and size
  -- are the request's, given where no number of slots is set. span_ms: for how long a raised limit must be in use.
  function self.accepted(in_use, granted_at, took_ms, size, span_ms)
    if not granted_at then
      if self.learning() then return end
      granted_at = now
    end
    if has('refusals') and granted_at > get('refused_since') and in_use >= get('refused_in_use') then
      set('accepted_since', get('accepted_since') + 1) -- a single one may have ended while the refused one was in use
      if get('accepted_since') >= REFUSALS_LEAST then forget_refusals() end
    end
    if in_use > get('most_accepted') and granted_at > get('lowered_at') then set('most_accepted', in_use) end
    if not has('full_since') or granted_at < get('full_since') + (span_ms or 0) or in_use < get('level') or get('ceiling') > get('level') then return end
    if took_ms and not (add_to_round(took_ms, size) and pays()) then return end
    if has('probing') then
      clear('probing', 'slow')
      if kind == 'slots' then set('hold_ms', math.max(LEAST_HOLD_MS, math.floor(get('hold_ms') / 2))) end
      set('ceiling', 2 * get('level'))
      set('changed_at', now)
    end
  end

  -- All of the limit is in use, and a request waits: raises it if that is due. Returns by how much; if by nothing, when to
  -- ask again.
  function self.grow(given)
    if not has('level') then return 0, nil end
    local level, at = get('level'), get('changed_at')
    local most = given > 0 and given or kind == 'slots' and AUTO_MOST or math.huge
    if not has('full_since') then set('full_since', now) end
    local by
    if level >= most then
      set('ceiling', level) -- so that an acceptance at this level ends the growth
      return 0, nil
    elseif get('ceiling') > level then
      local pace = GROWTH_MS / level
      local steps = math.min(math.floor((now - at) / pace), math.max(1, math.floor(level * GROWTH_SHARE)))
      by = math.min(steps, get('ceiling') - level, most - level)
      if by < 1 then return 0, math.ceil(at + pace) end
    elseif has('probing') then
      return 0, nil
    elseif now < at + get('hold_ms') then
      return 0, at + get('hold_ms')
    else
      by = 1
      set('ceiling', has('slow') and math.ceil(level * COMPARED_FROM) or level + 1)
    end
    set('level', level + by)
    set('changed_at', now)
    set('probing', 1)
    clear('full_since', 'round')
    return by, nil
  end

  -- Whether a lowered limit has stood for a while and must be logged; true only once.
  function self.to_log()
    if not has('lowered_at') or has('logged') or now - get('lowered_at') < LOGGED_AFTER_MS then return false end
    set('logged', 1)
    return true
  end

  -- For a process to keep. Times are milliseconds ago.
  function self.memory()
    if not has('level') then return nil end
    local memory = {most_accepted = get('most_accepted')}
    for _, name in ipairs(KEPT) do memory[name] = has(name) and get(name) or nil end
    for _, name in ipairs(KEPT_TIMES) do memory[name] = has(name) and now - get(name) or nil end
    return memory
  end

  -- Puts a memory of this time back. nil: nothing had been learnt.
  function self.restore(memory, at)
    self.forget()
    if not memory then return end
    set('most_accepted', memory.most_accepted)
    for _, name in ipairs(KEPT) do set(name, memory[name]) end
    for _, name in ipairs(KEPT_TIMES) do set(name, memory[name] and at - memory[name]) end
  end
  return self
end

local learners = {slots = learner('slots'), starts = learner('starts')}
