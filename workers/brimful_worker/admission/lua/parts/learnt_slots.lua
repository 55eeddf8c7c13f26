-- learnt_slots: the learner of the slots: additive increase, multiplicative decrease.
--
-- Decrease: a refusal lowers the limit to what was in use beside the refused request. If as many were accepted before, the
-- refusal may be random: only REFUSALS_LEAST of them, without as many acceptances in between, lower the limit.
--
-- Increase: after a hold the limit is raised by one. If that is accepted, it doubles every GROWTH_MS for as long as each
-- doubling is accepted. If it is refused, the hold doubles, up to MOST_HOLD_MS: two refusals a minute. At the limit that is
-- set, what was learnt is forgotten.
--
-- Without a set number of slots (auto) the limit grows from AUTO_FIRST, and a doubling must also pay: bring at least
-- PAYS_SHARE of the throughput that it would bring if no request waited at the provider. That follows from the latency of a
-- round of requests, compared with the round before by sizes. After a doubling that does not pay, the hold doubles too.
do
  local LEAST_HOLD_MS, MOST_HOLD_MS = 1000, 30500
  local GROWTH_MS, GROWTH_SHARE, FRESH_MS, PROBE_MS, DOUBTFUL_SHARE = 1000, 1 / 16, 500, 250, 0.7
  local AUTO_FIRST, AUTO_MOST, PAYS_SHARE, COMPARED_FROM = 8, 10000, 0.3, 1.5

  local function slots_learner()
    local self = learner('slots')
    local has, get, set, clear = self.has, self.get, self.set, self.clear

    -- A request granted at this time was refused, with so many others in use.
    function self.refused(given, others, granted_at)
      local level = self.limit(given)
      if level == 0 then level = others + 1 end
      local least = 1
      if has('level') and granted_at < get('lowered_at') then -- another of those that were granted together
        set('level', math.max(least, level - 1))
        set('ceiling', get('level'))
        return
      end
      -- Not only the first request after a raise counts as its probe: that one may get the place of a request whose slot is
      -- released a moment late.
      local probe = has('probing') and granted_at - get('changed_at') <= PROBE_MS
      local doubtful = not probe and (has('probing') or self.accepts(others + 1))
      if doubtful then
        if has('level') then set('ceiling', get('level')) end
        if not self.doubt(others + 1) then return end
      end
      self.forget_refusals()
      if probe or has('probing') then
        set('hold_ms', math.min(MOST_HOLD_MS, math.max(FIRST_HOLD_MS, 2 * get('hold_ms'))))
      elseif doubtful or not has('hold_ms') then
        set('hold_ms', doubtful and DOUBTFUL_HOLD_MS or FIRST_HOLD_MS)
      end
      -- When a refusal came late, what is in use now says little about it.
      if now - granted_at > FRESH_MS and not probe then least = math.max(least, math.floor(level / 2)) end
      if probe or has('probing') then
        others = level - 1
      elseif doubtful then
        others = math.floor(level * DOUBTFUL_SHARE)
      end
      self.lower(math.max(least, math.min(level - 1, others)))
      set('most_accepted', math.min(get('most_accepted'), get('level')))
      clear('round', 'slow')
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

    -- Whether a request was accepted with so many in use, as far as is known.
    function self.accepts(in_use)
      return get('most_accepted') >= in_use and not has('probing')
    end

    -- Adds an answer to this round. Returns whether the round is complete.
    local function add_to_round(took_ms, size)
      local round, answers = cjson.decode(self.text('round') or '{}'), 0
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
      local before = cjson.decode(self.text('compared_round') or '{}')
      for class, sums in pairs(cjson.decode(self.text('round'))) do
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
      local round = self.text('round')
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
    -- are the request's, given where no number of slots is set.
    function self.accepted(in_use, granted_at, took_ms, size)
      if not granted_at then
        if self.learning() then return end
        granted_at = now
      end
      self.reassure(in_use, granted_at)
      if in_use > get('most_accepted') and granted_at > get('lowered_at') then set('most_accepted', in_use) end
      if not has('full_since') or granted_at < get('full_since') or in_use < get('level') or get('ceiling') > get('level') then return end
      if took_ms and not (add_to_round(took_ms, size) and pays()) then return end
      if has('probing') then
        clear('probing', 'slow')
        set('hold_ms', math.max(LEAST_HOLD_MS, math.floor(get('hold_ms') / 2)))
        set('ceiling', 2 * get('level'))
        set('changed_at', now)
      end
    end

    -- All of the limit is in use, and a request waits: raises it if that is due. Returns by how much; if by nothing, when to
    -- ask again.
    function self.grow(given)
      if not has('level') then return 0, nil end
      local level, at = get('level'), get('changed_at')
      local most = given > 0 and given or AUTO_MOST
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
    return self
  end

  learners.slots = slots_learner()
end
