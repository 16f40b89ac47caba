-- beats.lua: the agents that live. After prelude.lua.
--
-- KEYS[1]  the feed (unused)     KEYS[2]  the beats, as in beat.lua
--
-- Returns {engine, text, engine, text, …}; those that have lapsed are swept out.
--
-- Atomic, because a beat that comes between the look and the sweep would be swept out with the old one.

local living = {}
local all = redis.call('HGETALL', KEYS[2])
for i = 1, #all, 2 do
  local deadline, text = string.match(all[i + 1], '^(%d+) (.*)$')
  if tonumber(deadline) > now then
    living[#living + 1] = all[i]
    living[#living + 1] = text
  else
    redis.call('HDEL', KEYS[2], all[i])
  end
end
return living
