-- mark_clean: vouches for a server's memory when it is known that no process of this key is alive.
--
-- Purpose: called by who has just started the server, before any process connects, so that the first process need not
--   wait a lease for processes that might be on their way back. What the server still knows (slots, starts) stays.
-- KEYS:
--    1 state  2 start_only  3 interactive  4 batch  5 heard  6 commands  7 pushed  8 inbox  9 workers
-- ARGV:
--    1 server     the server's run_id
--    2 new_epoch  random id
-- Returns: the epoch

local state_key, server, new_epoch = KEYS[1], ARGV[1], ARGV[2]

redis.call('DEL', unpack(KEYS, 2))
redis.call('HDEL', state_key, 'opens_at', 'certain', 'expected', 'seen_used', 'seen_at', 'told', 'probe')
redis.call('HSET', state_key, 'epoch', new_epoch, 'server', server)
return new_epoch
