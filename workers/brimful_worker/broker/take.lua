-- Takes messages from lists and notes them as unacknowledged, in one step: wherever a worker dies, each message is in its
-- queue or in a note.
-- KEYS: 1 unacked hash · 2 unacked index (ZSET delivery tag -> last renewal, Unix seconds) · 3… lists, most urgent first
-- ARGV: 1 number of messages at most · 2 now, Unix seconds · 3 how their delivery tags begin; the number from 1 follows
--       · for each list what follows the item in the note, `,"",<queue as JSON>]`; "" = its messages are not noted
--       · for each list "1" if only one of its messages may be taken, and none after others
-- Returns {number of the list from 1, item} for each; then {0, ''} if a list still holds messages of which several may be
-- taken. Or the error with which Redis refuses writes; nothing is taken then.
local unacked, index = KEYS[1], KEYS[2]
local most, now, tags, lists = tonumber(ARGV[1]), ARGV[2], ARGV[3], #KEYS - 2
local taken, more = {}, false

for place = 1, lists do
  local list, rest, alone = KEYS[2 + place], ARGV[3 + place], ARGV[3 + lists + place] == '1'
  while #taken < (alone and 1 or most) do
    local item = redis.pcall('RPOP', list)
    if not item then
      break
    end
    local refused = type(item) == 'table' and item
    if not refused and rest ~= '' then
      local tag = tags .. (#taken + 1)
      local noted = redis.pcall('HSET', unacked, tag, '[' .. item .. rest)
      refused = type(noted) == 'table' and noted
      if refused then
        redis.call('RPUSH', list, item)
      else
        redis.call('ZADD', index, now, tag)
      end
    end
    if refused then
      return #taken > 0 and taken or refused
    end
    taken[#taken + 1] = {place, item}
  end
  -- Takes nothing, and as no read it has no changes reported.
  local left = not alone and #taken == most and redis.pcall('RPOP', list, 0)
  more = more or (left and not left.err)
end
if #taken == 0 then
  -- A read, so that CLIENT TRACKING reports the next change of these keys.
  redis.call('EXISTS', unpack(KEYS, 3))
end
if more then
  taken[#taken + 1] = {0, ''}
end
return taken
