-- answers: what ended requests show of the limits, for the learners (learnt.lua).
local REFUSED_BY_SLOTS, REFUSED_BY_STARTS = 1, 2
local SAY_MS = 250 -- between two messages to all processes about what was learnt
local SOON_MS = 1000 -- a process that waits sends a command every third of a lease anyway
local STARTS_NEAR_SHARE = 0.8
local STATED_PER_MS = 60000 -- a limit that the provider states is of a minute
local STATED_MOST_MS = 15 * 60 * 1000 -- for how long it holds without being stated again

local function apply_learnt(rules, given)
  if given.slots == 0 then learners.slots.begin() end
  rules.slots = learners.slots.limit(given.slots)
  rules.starts = learners.starts.limit(given.starts)
  -- batch always keeps one slot and one start, whatever the reserve
  rules.reserve_slots = math.min(rules.reserve_slots, rules.slots - 1)
  if rules.starts > 0 then rules.reserve_starts = math.min(rules.reserve_starts, rules.starts - 1) end
end

-- window_ms: the window of these starts; 0 = not known, of a version that does not note it.
local function set_stated(starts, window_ms, at)
  put('starts_stated', starts and math.max(1, math.floor(starts)))
  put('starts_stated_ms', starts and window_ms > 0 and window_ms or nil)
  put('starts_stated_at', starts and at)
end

-- The starts of a window that are set, or that the provider states, whichever are fewer. 0 = none.
local function learn_stated_starts(rules, again)
  if message.stated_starts and not again then
    set_stated(message.stated_starts * rules.window_ms / STATED_PER_MS, rules.window_ms, now)
  elseif state.starts_stated and now > number('starts_stated_at') + STATED_MOST_MS then
    set_stated(nil)
  elseif state.starts_stated_ms and number('starts_stated_ms') ~= rules.window_ms then -- the window was changed since
    local per_window = number('starts_stated') * rules.window_ms / number('starts_stated_ms')
    set_stated(per_window, rules.window_ms, number('starts_stated_at'))
  end
  local stated = number('starts_stated')
  if stated > 0 and (rules.starts == 0 or stated < rules.starts) then return stated end
  return rules.starts
end

-- Slots of requests that have not ended.
local function active_slots()
  local count = 0
  for _, ticket in ipairs(redis.call('ZRANGE', slots_key, 0, -1)) do
    if string.sub(ticket, 1, 1) ~= '~' then count = count + 1 end
  end
  return count
end

-- Which limit a refusal by either is taken for: the starts where their limit is nearly reached, or where as many slots
-- have been in use before.
local function limit_of(refused, given, used, others)
  if refused == REFUSED_BY_SLOTS or refused == REFUSED_BY_STARTS then return refused end
  local starts = learners.starts.limit(given.starts)
  if starts > 0 and used >= STARTS_NEAR_SHARE * starts then return REFUSED_BY_STARTS end
  return learners.slots.accepts(others + 1) and REFUSED_BY_STARTS or REFUSED_BY_SLOTS
end

-- Notes when the limits in force were set: a refusal of a request that was granted before says nothing about them.
local function note_revision(rules)
  if state.rev == rules.rev then return end
  put('rev', rules.rev)
  put('rev_at', now)
end

-- `in_use`: slots before these requests were released.
local function note_answers(rules, given, in_use)
  local answers, refusals, accepted = message.answers or {}, {}, false
  for _, ended in ipairs(message.release) do
    local ticket, verdict = ended[1], ended[3]
    local answer = answers[ticket]
    if answer and answer[2] > 0 then
      if answer[1] >= number('rev_at') then refusals[#refusals + 1] = {ticket, answer[1], answer[2]} end
    elseif verdict == 1 and (answer or not accepted) then
      accepted = accepted or not answer -- once for all without an answer, which report the same
      local took_ms = answer and given.slots == 0 and answer[3] or nil
      learners.slots.accepted(in_use, answer and answer[1], took_ms, answer and answer[4])
      learners.starts.accepted(given.starts, rules, ticket, answer and answer[1])
    end
  end
  if #refusals == 0 then return end
  -- The provider no longer counts those of the guard.
  local others, used, by_starts = active_slots() + #refusals, starts_within(rules.window_ms), {}
  for _, refusal in ipairs(refusals) do
    others = others - 1
    if limit_of(refusal[3], given, used, others) == REFUSED_BY_SLOTS then
      learners.slots.refused(given.slots, others, refusal[2])
    else
      used = used - 1
      by_starts[#by_starts + 1] = refusal
    end
  end
  table.sort(by_starts, function(a, b) return a[2] < b[2] end)
  for _, refusal in ipairs(by_starts) do learners.starts.note_refused(rules, refusal[1], refusal[2]) end
  for _, refusal in ipairs(by_starts) do
    learners.starts.refused(given.starts, rules, refusal[1], refusal[2], refusal[3] == REFUSED_BY_STARTS)
  end
end

-- The sooner of two times, either of which may be nil; the second only if it is soon.
local function sooner(at, other)
  if not other or other > now + SOON_MS then return at end
  return at and math.min(at, other) or other
end

-- All that was learnt, for the processes to keep. Times are milliseconds ago.
local function learnt_memory()
  local memory = {slots = learners.slots.memory(), starts = learners.starts.memory()}
  if state.starts_stated then
    memory.stated = {number('starts_stated'), number('starts_stated_ms'), now - number('starts_stated_at')}
  end
  return memory
end

-- In an epoch that has just begun, each process reports what was learnt, as it read it last. The newest report counts, by
-- the time that Redis's clock showed then: by its age, a report that was long on its way would look newer.
local function restore_learnt(reported)
  if not reported.learners or not state.opens_at then return end
  local as_of, ago, memory = unpack(reported.learners)
  if as_of <= number('learners_at') then return end
  put('learners_at', as_of)
  local at = now - ago
  for kind, learner in pairs(learners) do learner.restore(memory[kind], at) end
  local starts, window_ms, since = unpack(memory.stated or {})
  set_stated(starts, window_ms, starts and at - since)
end

-- Adds what was learnt to the reply, and sends it to the other processes when it has changed.
local function reply_learnt(reply, given, stated)
  local learnt, said, active = {}, '', false
  for _, kind in ipairs({'slots', 'starts'}) do
    local level = learners[kind].limit(given[kind])
    if level ~= stated[kind] then learnt[kind], active = level, true end
    said = said .. (learnt[kind] or 0) .. ' '
    active = active or learners[kind].learning()
    if learnt[kind] and (kind == 'starts' or given.slots > 0) and learners[kind].to_log() then
      reply.told = reply.told or {}
      table.insert(reply.told, kind)
    end
  end
  if active then reply.learnt, reply.learners = learnt, learnt_memory() end
  if said == (state.learnt or '0 0 ') then return end
  local next_at = number('learnt_at') + SAY_MS
  if now < next_at then
    reply.at = reply.at and math.min(reply.at, next_at) or next_at
    return
  end
  put('learnt', said)
  put('learnt_at', now)
  redis.call('PUBLISH', everyone,
    cjson.encode({epoch = state.epoch, learnt = learnt, learners = learnt_memory(), as_of = now}))
end
