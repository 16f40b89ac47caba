-- prelude.lua: put before every script by redis_store.py.
--
-- KEYS[1]  the feed, a stream whose entries have the ids <seq>-0
-- ARGV[1]  the time in ms, or '' for the server's own: one clock for every worker
--
-- It gives: now, integer(), tail(), emit().

local FEED_LENGTH = 100000  -- events kept, about; a follower further behind takes a new snapshot

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Lua would write large numbers as 1e+15.
local function integer(number)
  return string.format('%d', number)
end

local last_seq

-- Sequence number of the last event; 0 before the first.
local function tail()
  if not last_seq then
    local entry = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
    last_seq = entry and tonumber(string.match(entry[1], '^%d+')) or 0
  end
  return last_seq
end

-- Append one event; data == nil says that the document is gone.
local function emit(kind, id, data)
  last_seq = tail() + 1
  local at = integer(last_seq) .. '-0'
  if data then
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', FEED_LENGTH, at, 'kind', kind, 'id', id, 'data', data)
  else
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', FEED_LENGTH, at, 'kind', kind, 'id', id)
  end
end
