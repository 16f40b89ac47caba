-- mark_lost.lua: the engine has restarted and lost its versions. After prelude.lua, fence.lua, placement.lua.
--
-- KEYS[1..6]  as in placement.lua     KEYS[7]  the role of the fence (any key without one)
-- ARGV[3]  token of the fence or ''   ARGV[4]  '1' for all versions     ARGV[5…]  else these
--
-- Returns 1, or 0 for a stale fence.
--
-- Atomic, because a concurrent claim must not see one version lost and another resident in the same dead
-- process. Leases stay: they protect nothing while their version is lost, and they expire.

if fenced(KEYS[7], ARGV[3]) then
  return 0
end
local versions = {}
if ARGV[4] == '1' then
  versions = redis.call('ZRANGE', RECENCY, 0, -1)
else
  for i = 5, #ARGV do
    versions[#versions + 1] = ARGV[i]
  end
end
for _, version in ipairs(versions) do
  local state = standing(engine, version)
  if state and state ~= 'lost' then
    place(version, 'lost', '', 0)
  end
end
return 1
