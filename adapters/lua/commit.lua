-- commit.lua: change documents, all or none. After prelude.lua.
--
-- KEYS[1]   the feed
-- KEYS[2…]  for each change, the hash of its kind
-- ARGV[2…]  for each change: kind, id, '+' to set or '-' to delete, the new text, and what must stand there:
--           '?' anything, '-' nothing, '=' the text that follows
--
-- Returns {1, sequence number of the last event} or {0, number of the change whose expectation failed}.
--
-- Atomic, because all expectations must hold at the moment when all changes are made.

local WIDTH = 6
local changes = (#ARGV - 1) / WIDTH

local function argument(change, field)
  return ARGV[1 + (change - 1) * WIDTH + field]
end

for i = 1, changes do
  local expectation = argument(i, 5)
  if expectation ~= '?' then
    local text = redis.call('HGET', KEYS[1 + i], argument(i, 2))
    if (expectation == '-' and text) or (expectation == '=' and text ~= argument(i, 6)) then
      return {0, i}
    end
  end
end
for i = 1, changes do
  local kind, id = argument(i, 1), argument(i, 2)
  if argument(i, 3) == '+' then
    redis.call('HSET', KEYS[1 + i], id, argument(i, 4))
    emit(kind, id, argument(i, 4))
  else
    redis.call('HDEL', KEYS[1 + i], id)
    emit(kind, id, nil)
  end
end
return {1, tail()}
