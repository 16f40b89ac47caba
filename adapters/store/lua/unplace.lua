-- unplace.lua: forget one version on an engine, or all of them. After prelude.lua, fence.lua and
-- placement.lua.
--
-- KEYS[1..6]  as in placement.lua     KEYS[7]  the role of the fence (any key without one)
-- ARGV[3]  version, or '' for all     ARGV[4]  token of the fence or ''
--
-- Returns 1, or 0 for a stale fence.
--
-- Atomic, because the five records of a placement must always agree for other scripts.

if fenced(KEYS[7], ARGV[4]) then
  return 0
end
if ARGV[3] ~= '' then
  forget(engine, ARGV[3], RECENCY, LEASES)
  return 1
end
for _, version in ipairs(redis.call('ZRANGE', RECENCY, 0, -1)) do
  forget(engine, version, RECENCY, LEASES)
end
redis.call('DEL', LEASES)
return 1
