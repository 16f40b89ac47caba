-- lose.lua: the engine's process is another one. After prelude.lua, fence.lua and placement.lua.
--
-- KEYS[1..6]  as in placement.lua     KEYS[7]  the role of the fence (any key without one)
-- ARGV[3]  token of the fence or ''   ARGV[4]  '1': all versions     ARGV[5…]  or these
--
-- Returns 1, or 0 for a stale fence.
--
-- Atomic, because a claim that comes between would find the one lost and the other resident in the same
-- dead process. Leases stay: they protect nothing while their version is lost, and lapse by themselves.

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
