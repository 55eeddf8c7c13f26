-- learnt_starts: the learner of the starts of a window.
--
-- Decrease: to the number of starts that were accepted in the window before the refused one; where a limit is set, by a
-- quarter at most, since few starts stand for a whole window. As a refusal may be random, that takes REFUSALS_LEAST of them,
-- and where one names no limit, without as many acceptances in between. Of those that name this limit, two that lie half a
-- window apart are enough, and show the whole window; so is a single one at NEAR_SHARE of a learnt limit.
--
-- Increase: when all starts are used and a hold has passed, one more is tried. If it is refused, the hold doubles, up to
-- MOST_STARTS_HOLD_MS: a refusal a minute. If it is accepted, the limit is one higher; after a window at it, STEP_FACTOR
-- times as many more are tried. What refusals without a name took is tried at once. A try keeps to the limit that is set,
-- over window and guard. Where all of that was used and accepted, what was learnt is forgotten.

-- Starts in the last milliseconds, also where none are logged.
local function starts_within(milliseconds)
  local from = now - milliseconds
  if state.logs_starts then return redis.call('ZCOUNT', starts_key, '(' .. from, '+inf') end
  local count = 0
  for i = 0, SLICES - 1 do
    local at, starts = read_slice('slice' .. i)
    if at > from then count = count + starts end
  end
  return count
end

do
  local NAMED_HOLD_MS, MOST_STARTS_HOLD_MS, TRIED_FOR_MS, STEP_FACTOR = 20000, 61000, 1000, 4
  local STARTS_LEAST_SHARE, NEAR_SHARE, REFUSED_MOST, DOUBT_WINDOWS = 0.75, 0.9, 64, 3

  local function starts_learner()
    local self = learner('starts')
    local has, get, set, clear = self.has, self.get, self.set, self.clear

    -- When the start of the ticket, granted at this time, was logged.
    local function logged_at(ticket, granted_at)
      return state.logs_starts and tonumber(redis.call('ZSCORE', starts_key, ticket) or nil) or granted_at
    end

    -- Starts that were accepted in the window that ends at this time (nil = now), as far as is known; and all starts in it.
    -- Those of the guard count only if guard_ms is given: the provider does not count them any more.
    function self.in_window(rules, at, guard_ms)
      if not state.logs_starts then at = nil end
      local counted_ms = rules.window_ms + (guard_ms or 0)
      local from = (at or now) - counted_ms
      local all = at and redis.call('ZCOUNT', starts_key, '(' .. from, at) or starts_within(counted_ms)
      local count = all
      for _, refused in ipairs(cjson.decode(self.text('refused') or '[]')) do
        if refused > from and refused <= (at or math.huge) then count = count - 1 end
      end
      return count, all
    end

    -- Notes that the start of the ticket was refused.
    function self.note_refused(rules, ticket, granted_at)
      local kept = {logged_at(ticket, granted_at)}
      for _, at in ipairs(cjson.decode(self.text('refused') or '[]')) do
        if at > now - rules.window_ms - rules.guard_ms and #kept < REFUSED_MOST then kept[#kept + 1] = at end
      end
      set('refused', cjson.encode(kept))
    end

    local function forget_old_refusals(rules)
      if has('refusals') and now > get('refused_since') + DOUBT_WINDOWS * rules.window_ms then self.forget_refusals() end
    end

    -- Whether refusals that name no limit are by this one: half of what started since the first was refused, as acceptances
    -- come later than refusals; or for a while all came where as much of the window was used.
    local function by_this_limit(rules)
      if not state.logs_starts then return true end
      local while_ms, alike = now - get('refused_since'), get('refused_in_use') >= NEAR_SHARE * get('refused_most')
      if alike and while_ms >= rules.window_ms / 4 then return true end
      return 2 * (get('refusals') - 1) >= redis.call('ZCOUNT', starts_key, '(' .. get('refused_since'), '+inf')
    end

    -- The start of the ticket, granted at this time, was refused. `named`: the refusal says that it is by this limit.
    function self.refused(given, rules, ticket, granted_at, named)
      local accepted, all = self.in_window(rules, logged_at(ticket, granted_at))
      local level = self.limit(given)
      if level == 0 then level = accepted + 1 end
      if has('level') and granted_at < get('lowered_at') then -- another of those that were granted together
        set('level', math.max(1, math.min(level, math.max(accepted, level - 1))))
        set('ceiling', get('level'))
        return
      end
      if has('level') and accepted >= level then -- one that was tried
        if has('probing') then
          set('hold_ms', math.min(MOST_STARTS_HOLD_MS, math.max(FIRST_HOLD_MS, 2 * get('hold_ms'))))
        end
        set('ceiling', level)
        clear('probing', 'full_since', 'regain')
        return
      end
      local near = named and has('level') and accepted >= NEAR_SHARE * level
      local least = given > 0 and math.floor(level * STARTS_LEAST_SHARE) or 1 -- 0 = no limit
      if not near then
        forget_old_refusals(rules)
        if not has('refusals') or not named then set('named', named and 1 or nil) end
        set('refused_most', math.max(get('refused_most'), all))
        local enough = self.doubt(all) and (has('named') or by_this_limit(rules))
        local apart = has('named') and now >= get('refused_since') + rules.window_ms / 2
        if not enough and not apart then return end
        if not has('named') then
          set('regain', math.max(get('regain'), level))
        elseif apart then
          least = 1
        end
      end
      set('hold_ms', math.max(get('hold_ms'), (near or has('named')) and NAMED_HOLD_MS or DOUBTFUL_HOLD_MS))
      self.forget_refusals()
      self.lower(math.max(1, least, math.min(level - 1, accepted)))
    end

    -- The start of the ticket, granted at this time (nil = not known), was accepted.
    function self.accepted(given, rules, ticket, granted_at)
      forget_old_refusals(rules)
      if not granted_at or not (has('refusals') or has('probing')) then return end
      local at = logged_at(ticket, granted_at)
      local accepted, all = self.in_window(rules, at)
      if not has('named') then self.reassure(all, granted_at) end
      local tried = has('probing') and granted_at >= get('tried_at') and granted_at > get('lowered_at')
      if given > 0 and self.in_window(rules, at, rules.guard_ms) >= given then accepted = given end
      if not tried or accepted <= get('level') then return end
      set('level', given > 0 and math.min(given, accepted) or accepted)
      set('changed_at', now)
      if get('level') < get('ceiling') then return end
      clear('probing', 'full_since')
      set('ceiling', math.max(get('level') + STEP_FACTOR * (get('ceiling') - get('tried_from')), get('regain')))
      if get('level') >= get('regain') then clear('regain') end
    end

    -- How many more than those in use, guard included, may start until there are so many in the window.
    local function more_until(ceiling, given, rules, used)
      local more = ceiling - self.in_window(rules)
      if given > 0 then more = math.min(more, given - used) end
      return math.max(0, more)
    end

    -- All of the window is used, with so many in it and in the guard, and a request waits. Returns how many more may start
    -- now; if none, when to ask again.
    function self.grow(given, rules, used)
      if not has('level') or (given > 0 and get('level') >= given) then return 0, nil end
      local level, wait_ms = get('level'), get('hold_ms')
      if get('ceiling') > level + 1 and not has('probing') then wait_ms = has('regain') and 0 or rules.window_ms end
      local due = math.max(get('changed_at'), get('tried_at')) + wait_ms
      if now < due then
        if not has('probing') or has('full_since') or now >= get('tried_at') + TRIED_FOR_MS then return 0, due end
        local more = more_until(get('ceiling'), given, rules, used)
        if more == 0 then set('full_since', now) end
        return more, nil
      end
      local ceiling = math.max(level + 1, get('ceiling'))
      if given > 0 then ceiling = math.min(ceiling, given) end
      local more = more_until(ceiling, given, rules, used)
      if more == 0 then return 0, nil end
      set('ceiling', ceiling)
      set('tried_from', level)
      set('tried_at', now)
      set('probing', 1)
      clear('full_since')
      return more, nil
    end
    return self
  end

  learners.starts = starts_learner()
end
