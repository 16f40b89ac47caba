-- fence.lua: follows the prelude in every script that takes a fence.
--
-- Provides: fenced().

-- Whether the holder of `token` has lost the role at `key`. An empty token means no fence. An expired role is
-- not lost until another holder takes it: only a holder acts.
local function fenced(key, token)
  if token == '' then
    return false
  end
  local held, holder = string.match(redis.call('GET', key) or '', '^%d+ (%d+) (.*)$')
  return held ~= token or holder == ''
end
