-- unplace.lua: forget one version on an engine, or all of them. After prelude.lua and placement.lua.
--
-- KEYS[1..6]  as in placement.lua
-- ARGV[3]  version, or '' for all
--
-- Returns nothing.
--
-- Atomic, because the five records of a placement must agree whenever another script looks.

if ARGV[3] ~= '' then
  forget(engine, ARGV[3], RECENCY, LEASES)
  return
end
for _, version in ipairs(redis.call('ZRANGE', RECENCY, 0, -1)) do
  forget(engine, version, RECENCY, LEASES)
end
redis.call('DEL', LEASES)
