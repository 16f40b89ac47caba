-- fence.lua: put after the prelude and before every script that may be under a fence.
--
-- It gives: fenced().

-- Whether the role under `key` has passed on from the holder of `token`; an empty token is no fence. A role
-- that has lapsed, but that nobody else has taken yet, still holds: nobody has acted in its place.
local function fenced(key, token)
  if token == '' then
    return false
  end
  local held, holder = string.match(redis.call('GET', key) or '', '^%d+ (%d+) (.*)$')
  return held ~= token or holder == ''
end
