-- abandon.lua: release the slot after a failed load. After prelude.lua and placement.lua.
--
-- KEYS[1..7]  as in placement.lua
-- ARGV[3]  version     ARGV[4]  owner
--
-- Returns 1, or 0 if the claim has lapsed or belongs to another owner.
--
-- Atomic, because another owner that takes over the claim after the check must keep the slot.

local version, owner = ARGV[3], ARGV[4]
local state, holder = standing(engine, version)
if state ~= 'loading' or holder ~= owner then
  return 0
end
forget(engine, version, RECENCY, LEASES)
return 1
