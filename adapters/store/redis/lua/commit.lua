-- commit.lua: change all documents or none. After prelude.lua and fence.lua.
--
-- KEYS[1]   the feed
-- KEYS[2]   the audit log, a stream    KEYS[3]  the fence's role (without a fence: any key)
-- KEYS[4…]  for each change, the hash of its kind
-- ARGV[2]   the fence's token or ''   ARGV[3]  the audit note or ''
-- ARGV[4…]  for each change: kind, id, '+' to set or '-' to delete, the new text, and the expectation:
--           '?' anything, '-' nothing, '=' the text that follows
--
-- Returns {1, sequence number of the last event}, {0, number of the change whose expectation failed}, or {-1,
-- 0} for a stale fence.
--
-- Atomic, because all expectations must hold when the changes are made, and because the audit must never miss
-- a change.

local FIXED, WIDTH = 3, 6
local changes = (#ARGV - FIXED) / WIDTH

local function argument(change, field)
  return ARGV[FIXED + (change - 1) * WIDTH + field]
end

if fenced(KEYS[3], ARGV[2]) then
  return {-1, 0}
end
for i = 1, changes do
  local expectation = argument(i, 5)
  if expectation ~= '?' then
    local text = redis.call('HGET', KEYS[3 + i], argument(i, 2))
    if (expectation == '-' and text) or (expectation == '=' and text ~= argument(i, 6)) then
      return {0, i}
    end
  end
end
for i = 1, changes do
  local kind, id = argument(i, 1), argument(i, 2)
  if argument(i, 3) == '+' then
    redis.call('HSET', KEYS[3 + i], id, argument(i, 4))
    emit(kind, id, argument(i, 4))
  else
    redis.call('HDEL', KEYS[3 + i], id)
    emit(kind, id, nil)
  end
end
if ARGV[3] ~= '' then
  -- '*' is monotonic even if the server's clock goes back
  redis.call('XADD', KEYS[2], clock == '' and '*' or integer(now) .. '-*', 'note', ARGV[3])
end
return {1, tail()}
