-- lead.lua: acquire or renew a role (leader election). After prelude.lua.
--
-- KEYS[1]  the feed (unused)
-- KEYS[2]  the role: '<expiry in ms> <token> <holder>'; an empty holder means resigned
-- ARGV[2]  the caller     ARGV[3]  ttl in ms; 0 resigns
--
-- Returns the token if the caller holds the role now (with a ttl of 0: held it), else 0.
--
-- Atomic, because two callers that find the role vacant must not both take it. The key is never deleted,
-- because a token must never be reused. If the server loses it anyway, the next token is the current time,
-- which is higher than any before.

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
