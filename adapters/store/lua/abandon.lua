-- abandon.lua: the load failed, the slot is given back. After prelude.lua and placement.lua.
--
-- KEYS[1..6]  as in placement.lua
-- ARGV[3]  version     ARGV[4]  owner
--
-- Returns 1, or 0 if the claim has lapsed or is somebody else's.
--
-- Atomic, because it must not take the slot from whoever took the claim over after the check.

local version, owner = ARGV[3], ARGV[4]
local state, holder = standing(engine, version)
if state ~= 'loading' or holder ~= owner then
  return 0
end
forget(engine, version, RECENCY, LEASES)
return 1
