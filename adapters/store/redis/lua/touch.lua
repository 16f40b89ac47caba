-- touch.lua: record one worker's use of versions since its last report, exchange requests in flight. After
-- prelude.lua.
--
-- KEYS[1]   the feed (unused: nothing here is an event)
-- KEYS[2]   the reports: hash worker -> '<expiry in ms> <its requests on every engine, and its note>'
-- KEYS[3…]  recency and leases of each engine, in pairs
-- ARGV[2]   worker     ARGV[3]  ttl of its leases and of its report, ms
-- ARGV[4]   JSON array of {number of the engine's recency key, version, age in ms, in flight}
-- ARGV[5]   its report, as a text for the other workers, or '' for none
--
-- Returns the other workers, each followed by its text, and deletes expired ones.
--
-- Atomic, because a version evicted between the check and the lease would be leased without a slot.

local worker, ttl, loads = ARGV[2], tonumber(ARGV[3]), KEYS[2]
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
redis.call('HDEL', loads, worker)
local others = {}
local all = redis.call('HGETALL', loads)
for i = 1, #all, 2 do
  local deadline, text = string.match(all[i + 1], '^(%d+) (.*)$')
  if tonumber(deadline) > now then
    others[#others + 1] = all[i]
    others[#others + 1] = text
  else
    redis.call('HDEL', loads, all[i])
  end
end
if ARGV[5] ~= '' then
  redis.call('HSET', loads, worker, integer(now + ttl) .. ' ' .. ARGV[5])
end
return others
