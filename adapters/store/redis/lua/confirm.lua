-- confirm.lua: the load succeeded. After prelude.lua and placement.lua.
--
-- KEYS[1..7]  as in placement.lua
-- ARGV[3]  version     ARGV[4]  owner     ARGV[5]  grace in ms: a lease for the waiters
-- ARGV[6]  Placement.verified
--
-- Returns 1, or 0 if the claim has lapsed or belongs to another owner.
--
-- Atomic, because otherwise the wrong owner could confirm a claim that is taken over after the check.

local version, owner, grace = ARGV[3], ARGV[4], tonumber(ARGV[5])
local state, holder = standing(engine, version)
if state ~= 'loading' or holder ~= owner then
  return 0
end
place(version, 'resident', '', 0, ARGV[6])
redis.call('ZADD', RECENCY, integer(now), version)
if grace > 0 then
  redis.call('HSET', LEASES, version .. '|', integer(now + grace))
end
return 1
