-- exchange: the one command of the admission. Atomic; one call is one turn of one process.
--
-- Purpose: applies what the process reports since its last turn (ended requests, new and cancelled waiters, leases to
--   renew), reclaims expired leases, then grants slots and starts together to the head of the fleet-wide queue for as
--   long as the limits allow. Grants for this process are in the reply; those for others are stored for them and
--   published on their channels. All times are the admission's clock (parts/clock.lua), in whole milliseconds.
-- KEYS (names in Redis in brimful/state/keys.py):
--    1 state          2 limits         3 defaults       4 slots            5 starts
--    6 tokens         7 token_amounts  8 start_only     9 interactive     10 batch
--   11 last_seen     12 command_seq   13 grant_seq     14 pending_grants  15 workers
--   16 on_wire
-- ARGV:
--    1 message          JSON object, fields below
--    2 channel_prefix   of the processes' channels
--    3 everyone         the channel of all processes
-- Message:
--    process      id of the sending process, [0-9a-f]+
--    schema       version of keys, messages and script that it uses; absent = 1
--    command      number of its command: a repeated number delivers the same grants, renews again and does nothing
--                 else; a lower one is stale
--    epoch        the epoch it knows; "" = it joins
--    server       run_id of the server it is connected to
--    new_epoch    random id, used if an epoch begins
--    bound_ms     optional: upper limit of the admission's clock, by the process's own clock
--    least_ms     optional: lower limit of the admission's clock, likewise; a clock that is behind it has lost time
--    stepped      optional true: a clock past bound_ms was stepped, and is held back to it
--    clock        id of the clock that bound_ms is about; "" = it has not read any
--    read         optional: the latest time of the admission's clock that an answer to the process showed
--    waited       optional [reading, milliseconds, clock, most]: since the first "frozen" reply with this reading and
--                 clock; and what Redis's TIME shows at most (ms), if it was not stepped since
--    lease_ms     its value of the lease, used where the limits in force are not known yet
--    seen         number of the last grant it has taken
--    rev          revision of the limits it knows
--    members      optional: revision of the list of members it knows, by which it confirms that list
--    worker       optional: JSON text shown by status. Of its numbers, rtt_ms and lag_ms are read: the round trip to Redis,
--                 and for how much longer each of its starts counts
--    join         optional object, in the first turn of an epoch: defaults (object of limits), leases [[ticket]],
--                 starts [[ticket, age_ms]], tokens [[ticket, age_ms, amount]], overrides (object of limits),
--                 alive (number of processes it last knew of), used and used_age_ms (starts in the window when it last
--                 read them, and how long ago), members (ids, as last read), spent (of the budget, as last read),
--                 lag_most (as last read), learners ([clock, milliseconds ago, `learners` as read then; empty = nothing learnt])
--    release      optional [[ticket, cooldown_ms, verdict 1 ok 0 failed -1 neutral, used tokens or -1, undo 0/1]], with
--                 the name as a sixth element where it is not the ticket's, and 1 as a seventh where deaths are forgotten
--    answers      optional {ticket: [granted_at, refused, took_ms, size]} of released ones: refused = 1 by the limit on slots, 2 by
--                 that on starts, 3 by either; 0 = accepted, of which only those with verdict 1 are given, while `learnt` is
--                 set. took_ms = from the wire to the end; size = tokens that it may use
--    stated_starts  optional: starts a minute that the provider states
--    rename       optional [[ticket, name]]: granted to a request of this process that the ticket does not name
--    renew        optional [ticket]
--    ask          optional [[ticket, waited_ms]]; ticket = process.queue.number.tokens or process.queue.number-name.tokens;
--                 queue = i interactive, b batch, s start only; name = [0-9a-f]+ of the request, equal wherever it is asked
--    cancel       optional [ticket]
--    pause        optional [milliseconds, reason]
--    busy         optional [milliseconds, reason]: a pause that ends with the first accepted request
--    defaults     optional: offered again by a process whose defaults are not in force
--    leave        optional true: the process ends
-- Returns: an error that begins with SCRIPTERROR if this script has failed; else a JSON object
--    status       "ok"; "join": join first, nothing was done; "stale": an older command, nothing was done;
--                 "late": the clock is past bound_ms, nothing was done, to be sent again at once with a new bound;
--                 "frozen": the process cannot know how much time has passed, nothing was done, to be sent again soon;
--                 TIME is in the field real (ms)
--                 "schema": the fleet uses another schema, in the field schema; nothing was done, no other field is set
--    epoch, now   the epoch in force; the clock
--    clock        optional: the clock's id, when the process knows another
--    grants       optional [[number, ticket, granted_at]], or [number, ticket, granted_at, deaths] of a named request
--                 that other processes held when they died. Of a process with a lag [number, ticket, granted_at, deaths, lag_ms]
--    renamed      optional [[ticket, deaths]]: of what was renamed
--    lost         optional [ticket]: released or renewed too late
--    refused      optional [ticket]: no room in the budget
--    at           optional: send the next command at this time
--    idle         optional true: nobody waits, and half of the slots are free
--    full_until   optional: nothing can start before this time, since the window is full
--    used, alive  starts in the window; processes seen within a lease. Absent during a rebuild
--    members      optional [revision, [id]], when the process knows another revision or joins
--    spent        optional: of the budget
--    tokens_used  optional: tokens in the window, where they are limited
--    lag_most     optional: most milliseconds by which a start counts longer
--    pause        optional [milliseconds, reason]: what is left of a pause
--    base         after a join: its grants are numbered above this
--    rev          the limits' revision
--    limits, overrides  optional, when the process knows another revision or joins: the limits in force; those of them
--                 that the operator set
--    learnt       optional {slots, starts}: the lower limits in force, learnt from refusals; empty while that is in doubt
--    learners     with `learnt`: all that was learnt, for a server that has lost its memory
--    told         optional [names]: learnt limits to be logged by this process
--    differs      optional true: the process's defaults are not those in force

local state_key, limits_key, defaults_key, slots_key, starts_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local tokens_key, token_amounts_key, start_only_key = KEYS[6], KEYS[7], KEYS[8]
local interactive_key, batch_key, last_seen_key = KEYS[9], KEYS[10], KEYS[11]
local command_seq_key, grant_seq_key, pending_grants_key, workers_key = KEYS[12], KEYS[13], KEYS[14], KEYS[15]
local on_wire_key = KEYS[16]
local message, channel_prefix, everyone = cjson.decode(ARGV[1]), ARGV[2], ARGV[3]
local me = message.process

--#include parts/state.lua
--#include parts/sums.lua
--#include parts/clock.lua
--#include parts/tickets.lua
-- To make a closure, Lua searches a list for each variable that it uses of the function around it; those of functions further
-- out are copied. So the rest stands in a function of its own, which has fewer variables than the whole script.
local function exchange()
--#include parts/members.lua
--#include parts/on_wire.lua
--#include parts/limits.lua
--#include parts/tokens.lua
--#include parts/epoch.lua
--#include parts/breaker.lua
--#include parts/leases.lua
--#include parts/queue.lua
--#include parts/unlogged.lua
--#include parts/learnt.lua
--#include parts/learnt_slots.lua
--#include parts/learnt_starts.lua
--#include parts/answers.lua
--#include parts/grants.lua

  if frozen then
    prompt_others()
    return cjson.encode({status = 'frozen', epoch = state.epoch, now = now, clock = state.clock, real = real})
  end
  if late then return cjson.encode({status = 'late', epoch = state.epoch, now = now}) end
  local schema = other_schema()
  if schema then return cjson.encode({status = 'schema', schema = schema}) end

  local reply = {status = 'ok', now = now}
  if message.clock ~= state.clock then reply.clock = state.clock end
  local function refuse(status)
    reply.status = status
    save_with_sums()
    return cjson.encode(reply)
  end

  local recorded = tonumber(redis.call('HGET', command_seq_key, me) or nil)
  -- The clock never goes back, and commands are numbered: a process that has read a later time, or has sent more commands
  -- than this server knows, was answered by data that is gone. A replica that was behind may have taken their place.
  local rolled_back = followed_another() or turned_at < (message.read or 0)
    or recorded and state.epoch == message.epoch and recorded < message.command - 1 and not message.join
  if not state.epoch or state.server ~= message.server or rolled_back or next(shrunken) then
    begin_epoch(rolled_back)
    recorded = nil
  end
  reply.epoch = state.epoch
  if recorded and recorded > message.command then return refuse('stale') end
  local known = recorded and message.epoch == state.epoch and redis.call('EXISTS', defaults_key) == 1
  if not message.join and not known then return refuse('join') end

  local again = recorded == message.command
  if not again then
    redis.call('HSET', command_seq_key, me, message.command, me .. ' seen', message.seen)
    redis.call('ZADD', last_seen_key, now, me)
    if message.worker then redis.call('HSET', workers_key, me, message.worker) end
    if message.join then
      join(message.join)
      restore_learnt(message.join)
    elseif message.members then
      redis.call('HSET', command_seq_key, me .. ' members', message.members)
    end
    if message.worker then note_lag() end
  end
  local defaults = message.defaults or message.join and message.join.defaults
  if defaults then reply.differs = take_defaults(defaults) end
  local rules, overrides = read_limits()
  note_revision(rules)
  local stated = {slots = rules.slots, starts = rules.starts}
  local given = {slots = rules.auto == 0 and rules.slots or 0, starts = rules.starts} -- 0 = none
  given.starts = learn_stated_starts(rules, again)
  if remove_silent(rules) then forget_old_notes() end
  reclaim(rules)
  local lost = {}
  if not again then
    if message.pause then pause(message.pause[1], message.pause[2]) end
    if message.busy then pause_until_accepted(message.busy[1], message.busy[2]) end
    local in_use = message.release and redis.call('ZCARD', slots_key)
    release_all(rules, message.release or {}, lost)
    if message.release then note_answers(rules, given, in_use) end
    for _, ticket in ipairs(message.cancel or {}) do redis.call('ZREM', queue_of(ticket), ticket) end
    enqueue(message.ask or {})
    if message.leave then
      end_notes_of(me)
      remove_process(me)
      publish_members()
    end
  end
  renew(rules, message.renew or {}, lost)
  for _, renamed in ipairs(message.rename or {}) do
    reply.renamed = reply.renamed or {}
    table.insert(reply.renamed, {renamed[1], rename(renamed[1], renamed[2])})
  end
  if message.join and not again then add_newcomer() end
  if state.opens_at then open_if_complete(rules) end

  apply_learnt(rules, given)
  if not state.opens_at then begin_logs(rules) end
  local outcome = grant_all(rules, given)
  note_unlogged(rules, outcome)
  local grants = deliver(outcome)
  reply.at = next_poll_at(outcome)
  if outcome.idle then reply.idle = true end
  reply.full_until = outcome.full_until
  reply_learnt(reply, given, stated)
  if #lost > 0 then reply.lost = lost end
  if #outcome.refused > 0 then reply.refused = outcome.refused end
  if not state.opens_at then
    reply.used, reply.alive = outcome.used, live_count(rules)
    if outcome.used ~= number('used') then put('used', outcome.used) end
  end
  if now < number('pause_until') then reply.pause = {number('pause_until') - now, state.pause_reason} end
  if rules.budget > 0 then reply.spent = number('spent') end
  if rules.tokens > 0 then reply.tokens_used = number('tokens_sum') end
  if message.members and (message.join or message.members ~= number('members_rev')) then
    reply.members = {number('members_rev'), members()}
  end
  if state.lag_most then reply.lag_most = number('lag_most') end
  reply.rev = rules.rev
  if message.join then reply.base = tonumber(redis.call('HGET', command_seq_key, me .. ' seen') or 0) end
  if message.rev ~= rules.rev or message.join then
    for name, value in pairs(stated) do rules[name] = value end
    reply.limits = rules
    reply.overrides = overrides
  end
  save_with_sums()
  return with_grants(cjson.encode(reply), grants)
end

local done, result = pcall(exchange)
if done then return result end
local text = type(result) == 'table' and result.err or tostring(result)
for _, refusal in ipairs({'OOM ', 'MISCONF ', 'NOREPLICAS ', 'READONLY '}) do
  -- The server refuses a script's first write only: nothing was written.
  if string.find(text, refusal, 1, true) then return redis.error_reply(text) end
end
-- Part of the turn may have been written: a new epoch, in which every process reports again, puts that right.
redis.pcall('HDEL', state_key, 'epoch')
return redis.error_reply('SCRIPTERROR ' .. text)
