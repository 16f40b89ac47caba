-- touch.lua: record one worker's use of versions since its last report. After prelude.lua.
--
-- KEYS[1]   the feed (unused: nothing here is an event)
-- KEYS[2…]  recency and leases of each engine, in pairs
-- ARGV[2]   worker     ARGV[3]  ttl of its leases, ms
-- ARGV[4]   JSON array of {number of the engine's recency key, version, age in ms, in flight}
--
-- Returns nothing.
--
-- Atomic, because a version evicted between the check and the lease would be leased without a slot.

local worker, ttl = ARGV[2], tonumber(ARGV[3])
for _, use in ipairs(cjson.decode(ARGV[4])) do
  local recency, leases, version = KEYS[use[1]], KEYS[use[1] + 1], use[2]
  local last = tonumber(redis.call('ZSCORE', recency, version) or nil)
  if last then
    redis.call('ZADD', recency, integer(math.max(last, now - use[3])), version)
  end
  local lease = version .. '|' .. worker
  if last and use[4] > 0 then
    redis.call('HSET', leases, lease, integer(now + ttl), lease .. '|n', integer(use[4]))
  else
    redis.call('HDEL', leases, lease, lease .. '|n')
  end
end
