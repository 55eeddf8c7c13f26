-- batch_charge: a batch has ended: adds what it has used to its caller's counts, and holds back nothing for it any more.
-- Once, however often it is called.
-- KEYS: 1 HASH of the callers' usage; 2 HASH of what batches hold back (batch_hold.lua); 3 STRING: this batch is charged.
-- ARGV: 1 the batch's field in the second; 2, 3 fields of the caller's requests and tokens in the first; 4, 5 what is added to
-- them; 6 seconds for which the third is kept.
-- Returns 1 if it was added, 0 if an earlier call has done so.
redis.call('HDEL', KEYS[2], ARGV[1])
if not redis.call('SET', KEYS[3], '1', 'NX', 'EX', ARGV[6]) then return 0 end
redis.call('HINCRBY', KEYS[1], ARGV[2], ARGV[4])
redis.call('HINCRBY', KEYS[1], ARGV[3], ARGV[5])
return 1
