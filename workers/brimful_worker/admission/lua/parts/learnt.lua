-- learnt: limits lower than those set, learnt from the provider's refusals (429). One learner for the slots
-- (learnt_slots.lua) and one for the starts of a window (learnt_starts.lua); here is what both need. Both are fields of the
-- state, so that all processes use the same numbers.
local FIRST_HOLD_MS, DOUBTFUL_HOLD_MS = 10000, 4000
local learners = {}
local learner -- function(kind)

-- Blocks keep the number of the script's local variables below the 200 that Lua allows.
do
  local REFUSALS_LEAST, LOGGED_AFTER_MS = 3, 3000

  -- A learner's fields by the names used here, and their names in the state, which other versions read. Times are in
  -- milliseconds of the admission's clock.
  local FIELDS = {
    level = 'level', -- the limit
    changed_at = 'at',
    lowered_at = 'lowered',
    hold_ms = 'hold', -- from the last change, or try, until a higher limit is tried
    ceiling = 'top', -- up to where the limit may grow now
    full_since = 'full', -- slots: since when all of them have been in use; starts: when all that are tried were granted
    probing = 'probing', -- 1 = a higher limit is tried, and no request was accepted at it yet
    refusals = 'strikes', -- number of refusals that may be random
    refused_in_use = 'struck', -- the least in use at one of those
    refused_since = 'struck_at', -- when the first of those came
    accepted_since = 'cleared', -- acceptances since the last of those
    logged = 'told', -- 1 = a process has logged the lower limit
    -- of the slots alone
    round = 'round', -- JSON of the answers at this level: {size class: [answers, their milliseconds]}
    compared_round = 'before', -- the same of the round that this one is compared with
    compared_level = 'base', -- the level of that round
    slow = 'slow', -- 1 = growth was stopped by the latency
    -- of the starts alone
    tried_at = 'tried', -- when more than the limit was tried last
    tried_from = 'from', -- the limit then
    regain = 'was', -- the limit before refusals that may have been random lowered it
    named = 'named', -- 1 = the refusals say that they are by this limit
    refused_most = 'struck_most', -- the most in use at a refusal that may be random
    refused = 'refused', -- JSON of the times of refused starts in the window
  }
  local MOST_ACCEPTED = 'proven' -- the most in use at which a request was accepted; outlasts the other fields
  -- What the processes keep, in case the server forgets it.
  local KEPT = {'level', 'hold_ms', 'ceiling', 'probing', 'logged', 'tried_from'}
  local KEPT_TIMES = {'changed_at', 'lowered_at', 'tried_at'}

  function learner(kind)
    local self = {}
    local fields = {} -- name → field of the state
    local function field(name)
      fields[name] = fields[name] or kind .. '_' .. (FIELDS[name] or MOST_ACCEPTED)
      return fields[name]
    end
    local function has(name) return state[field(name)] ~= nil end
    local function get(name) return number(field(name)) end
    local function set(name, value)
      if value ~= nil or has(name) then put(field(name), value) end
    end
    local function clear(...)
      for _, name in ipairs({...}) do set(name, nil) end
    end
    local function text(name) return state[field(name)] end
    self.has, self.get, self.set, self.clear, self.text = has, get, set, clear, text

    function self.forget_refusals()
      clear('refusals', 'refused_in_use', 'refused_since', 'accepted_since', 'named', 'refused_most')
    end

    -- Counts a refusal that may be random. Returns whether there were enough of them.
    function self.doubt(in_use)
      if not has('refusals') then set('refused_since', now) end
      set('refused_in_use', math.min(has('refused_in_use') and get('refused_in_use') or math.huge, in_use))
      set('refusals', get('refusals') + 1)
      set('accepted_since', nil)
      return get('refusals') >= REFUSALS_LEAST
    end

    -- A request granted at this time was accepted, with so many in use: as many of those as of refusals end the doubt.
    function self.reassure(in_use, granted_at)
      if has('refusals') and granted_at > get('refused_since') and in_use >= get('refused_in_use') then
        set('accepted_since', get('accepted_since') + 1) -- a single one may have ended while the refused one was in use
        if get('accepted_since') >= REFUSALS_LEAST then self.forget_refusals() end
      end
    end

    function self.lower(level)
      set('level', level)
      set('ceiling', level)
      set('changed_at', now)
      set('lowered_at', now)
      clear('probing', 'full_since')
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

    -- Whether processes must report when accepted requests were granted.
    function self.learning()
      return has('level') or has('refusals')
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
end
