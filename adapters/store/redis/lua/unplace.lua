-- unplace.lua: forget one version on an engine, or all of them. After prelude.lua, fence.lua and
-- placement.lua.
--
-- KEYS[1..7]  as in placement.lua     KEYS[8]  the fence's role (without a fence: any key)
-- ARGV[3]  version, or '' for all     ARGV[4]  the fence's token or ''
--
-- Returns 1, or 0 for a stale fence.
--
-- Atomic, because the records of a placement must always agree for other scripts.

if fenced(KEYS[8], ARGV[4]) then
  return 0
end
if ARGV[3] ~= '' then
  forget(engine, ARGV[3], RECENCY, LEASES)
  return 1
end
for _, held in ipairs({RECENCY, CACHED}) do
  for _, version in ipairs(redis.call('ZRANGE', held, 0, -1)) do
    forget(engine, version, RECENCY, LEASES)
  end
end
redis.call('DEL', LEASES)
return 1
