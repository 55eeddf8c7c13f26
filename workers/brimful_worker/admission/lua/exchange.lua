-- exchange: one turn of one process's talk with the admission, atomic, in one command.
--
-- Purpose: takes what the process has to say since its last turn (ended requests, new and cancelled tickets, leases to
--   renew), reclaims expired leases, then grants slot and start together to the fleet-wide queue's head for as long as
--   the limits allow. Grants for this process are in the reply; those for others go to their inbox and are published
--   on their channel. All times are the admission's clock (parts/clock.lua), in whole milliseconds.
-- KEYS:
--    1 state        2 limits       3 defaults     4 slots        5 starts       6 tokens       7 amounts
--    8 start_only   9 interactive 10 batch       11 heard       12 commands    13 pushed      14 inbox
--   15 workers
-- ARGV:
--    1 message   JSON object, fields below
--    2 to        prefix of the processes' channels
--    3 everyone  the channel of all processes
-- Message:
--    process      id of the speaking process, [0-9a-f]+
--    command      its command number: the same again delivers the same grants, renews again and does nothing else;
--                 older is stale
--    epoch        the epoch it knows, "" at first
--    server       run_id of the server it is connected to; uptime_ms: that server's age
--    new_epoch    random id, taken if an epoch must begin
--    bound_ms     optional: the clock can be no further than this by the process's own monotonic clock
--    lease_ms     its idea of a lease, used only before limits are known
--    seen         number of the last grant it received
--    rev          revision of the limits it knows
--    worker       optional: JSON text shown by status
--    join         optional object, first turn of an epoch: defaults (object of limits), leases [[ticket]],
--                 starts [[ticket, age_ms]], tokens [[ticket, age_ms, amount]], overrides (object of limits),
--                 alive (processes it last knew of), used and used_age_ms (starts in the window it last saw, and when),
--                 spent (of the budget, as it last saw)
--    release      optional [[ticket, cool_ms, verdict 1 ok 0 failed -1 neutral, used tokens or -1, undo 0/1]]
--    renew        optional [ticket]
--    ask          optional [[ticket, waited_ms]], ticket = process.kind.number.tokens; kind = i interactive, b batch,
--                 s start only
--    cancel       optional [ticket]
--    pause        optional [milliseconds, reason]
--    defaults     optional, offered again by a process whose own are not in force
--    leave        optional true: the process ends
-- Returns: JSON object
--    status       "ok"; "join": say join first, nothing was done; "stale": an older command, nothing was done
--    epoch, now   the epoch in force; the clock
--    grants       optional [[number, ticket, granted_at]]
--    lost         optional [ticket]: released or renewed too late
--    refused      optional [ticket]: the budget's end
--    at           optional: come again at this time
--    used, alive  starts in the window; processes heard of within a lease. Not while an epoch is not open yet
--    spent        optional: of the budget
--    pause        optional [milliseconds, reason]: what is left of a pause
--    base         when it joins: its next grant's number is above this
--    rev          the limits' revision
--    limits, overrides  optional, when the process knows another revision or joins: the limits in force; of these, those
--                 that the operator set
--    differs      optional true: the process's defaults are not those in force

local state_key, limits_key, defaults_key, slots_key, starts_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local tokens_key, amounts_key, start_only_key, interactive_key, batch_key = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local heard_key, commands_key, pushed_key, inbox_key, workers_key = KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15]
local message, to, everyone = cjson.decode(ARGV[1]), ARGV[2], ARGV[3]
local me = message.process

--#include parts/state.lua
--#include parts/clock.lua
--#include parts/members.lua
--#include parts/limits.lua
--#include parts/epoch.lua
--#include parts/breaker.lua
--#include parts/tokens.lua
--#include parts/leases.lua
--#include parts/queue.lua
--#include parts/grants.lua

local reply = {status = 'ok', now = now}

local recorded = tonumber(redis.call('HGET', commands_key, me) or nil)
local rolled_back = recorded and state.epoch == message.epoch and recorded < message.command - 1 and not message.join
if not state.epoch or state.server ~= message.server or rolled_back then
  begin_epoch()
  recorded = nil
end
reply.epoch = state.epoch
if recorded and recorded > message.command then
  reply.status = 'stale'
  save_state()
  return cjson.encode(reply)
end
if not message.join and (message.epoch ~= state.epoch or not recorded) then
  reply.status = 'join'
  save_state()
  return cjson.encode(reply)
end

local again = recorded == message.command
if not again then
  redis.call('HSET', commands_key, me, message.command, me .. ' seen', message.seen)
  redis.call('ZADD', heard_key, now, me)
  if message.worker then redis.call('HSET', workers_key, me, message.worker) end
  if message.join then join(message.join) end
end
local defaults = message.defaults or message.join and message.join.defaults
if defaults then reply.differs = take_defaults(defaults) end
local rules, overrides = read_limits()
forget_silent(rules)
reclaim(rules)
local lost = {}
if not again then
  if message.pause then pause(message.pause[1], message.pause[2]) end
  for _, ended in ipairs(message.release or {}) do release(rules, ended, lost) end
  for _, ticket in ipairs(message.cancel or {}) do redis.call('ZREM', queue_of(ticket), ticket) end
  for _, asked in ipairs(message.ask or {}) do redis.call('ZADD', queue_of(asked[1]), 'NX', now - asked[2], asked[1]) end
  if message.leave then forget(me) end
end
renew(rules, message.renew or {}, lost)
if state.opens_at then
  open_if_complete(rules)
elseif message.join and not again then
  tell_alive(rules)
end

local outcome = grant_all(rules)
reply.grants = deliver(outcome.granted)
reply.at = come_again(outcome)
if #lost > 0 then reply.lost = lost end
if #outcome.refused > 0 then reply.refused = outcome.refused end
if not state.opens_at then reply.used, reply.alive = outcome.used, alive(rules) end
if now < number('pause_until') then reply.pause = {number('pause_until') - now, state.pause_reason} end
if rules.budget > 0 then reply.spent = number('spent') end
reply.rev = rules.rev
if message.join then reply.base = tonumber(redis.call('HGET', commands_key, me .. ' seen') or 0) end
if message.rev ~= rules.rev or message.join then
  reply.limits = rules
  reply.overrides = overrides
end
save_state()
return cjson.encode(reply)
