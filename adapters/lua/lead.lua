-- lead.lua: become or stay the holder of a role. After prelude.lua.
--
-- KEYS[1]  the feed (unused)     KEYS[2]  the role: '<ms until which it is held> <holder>'
-- ARGV[2]  who asks     ARGV[3]  ttl in ms; 0 resigns
--
-- Returns 1 if the role is the asker's now (for 0: was), else 0.
--
-- Atomic, because two who find the role vacant at once must not both take it.

local deadline, holder = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+) (.*)$')
if deadline and tonumber(deadline) > now and holder ~= ARGV[2] then
  return 0
end
local ttl = tonumber(ARGV[3])
if ttl > 0 then
  redis.call('SET', KEYS[2], integer(now + ttl) .. ' ' .. ARGV[2])
else
  redis.call('DEL', KEYS[2])
end
return 1
