-- heartbeats.lua: list the agents, or gateways, that are alive. After prelude.lua.
--
-- KEYS[1]  the feed (unused)     KEYS[2]  the heartbeats, as in heartbeat.lua
--
-- Returns {name, text, name, text, …}, and deletes expired ones.
--
-- Atomic, because a heartbeat that arrives between the read and the delete would be deleted too.

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
