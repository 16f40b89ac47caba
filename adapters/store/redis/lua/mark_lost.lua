-- mark_lost.lua: the engine has restarted and lost its versions. After prelude.lua, fence.lua, placement.lua.
--
-- KEYS[1..7]  as in placement.lua     KEYS[8]  the fence's role (without a fence: any key)
-- ARGV[3]  the fence's token or ''   ARGV[4]  '1' for all versions     ARGV[5…]  else these
--
-- Returns 1, or 0 for a stale fence. A cached version is forgotten, since it holds no slot to keep.
--
-- Atomic, because a concurrent claim must not see one version lost and another resident in the same dead
-- process. Leases stay: they protect nothing while their version is lost, and they expire.

if fenced(KEYS[8], ARGV[3]) then
  return 0
end
local versions = {}
if ARGV[4] == '1' then
  versions = redis.call('ZRANGE', RECENCY, 0, -1)
  for _, version in ipairs(redis.call('ZRANGE', CACHED, 0, -1)) do
    versions[#versions + 1] = version
  end
else
  for i = 5, #ARGV do
    versions[#versions + 1] = ARGV[i]
  end
end
for _, version in ipairs(versions) do
  local state = standing(engine, version)
  if state == 'cached' then
    forget(engine, version, RECENCY, LEASES)
  elseif state and state ~= 'lost' then
    place(version, 'lost', '', 0)
  end
end
return 1
