-- fence.lua: placed after the prelude and before every script that may carry a fence.
--
-- Provides: fenced().

-- Whether the role at `key` has passed from the holder of `token` to another. An empty token means no fence.
-- A lapsed role that no other holder has taken still counts: nobody has acted in its place.
local function fenced(key, token)
  if token == '' then
    return false
  end
  local held, holder = string.match(redis.call('GET', key) or '', '^%d+ (%d+) (.*)$')
  return held ~= token or holder == ''
end
