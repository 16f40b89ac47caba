-- lead.lua: become or stay the holder of a role. After prelude.lua.
--
-- KEYS[1]  the feed (unused)
-- KEYS[2]  the role: '<ms until which it is held> <token> <holder>'; no holder: resigned
-- ARGV[2]  who asks     ARGV[3]  ttl in ms; 0 resigns
--
-- Returns the token if the role is the asker's now (for a ttl of 0: was), else 0.
--
-- Atomic, because two who find the role vacant at once must not both take it. The key is never deleted,
-- because a token that was given once must never be given again; should the server lose it all the same, the
-- time is higher than any.

local asker, ttl = ARGV[2], tonumber(ARGV[3])
local deadline, token, holder = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+) (%d+) (.*)$')
deadline, token, holder = tonumber(deadline or 0), tonumber(token or now), holder or ''
if holder ~= asker and (deadline > now or ttl == 0) then
  return 0
end
if ttl == 0 then
  redis.call('SET', KEYS[2], '0 ' .. integer(token) .. ' ')
  return token
end
if holder ~= asker then
  token = token + 1
end
redis.call('SET', KEYS[2], integer(now + ttl) .. ' ' .. integer(token) .. ' ' .. asker)
return token
