-- prelude.lua: the beginning of every script (adapters/store/redis/server.py).
--
-- KEYS[1]  the feed, a stream whose entries have the ids <seq>-0
-- ARGV[1]  '<time in ms>|<seq>|<mark>': the time is empty to use the server's clock; then the last event
--          that the caller knows (adapters/store/continuity.py)
--
-- Provides: clock (the time given, or ''), now, integer(), tail(), emit().
--
-- Fails with REGRESSED, without changes, if the server has lost that event.

-- Approximate number of events kept; a follower that is further behind takes a new snapshot.
local FEED_LENGTH = 100000

local clock, known, known_mark = string.match(ARGV[1], '^(-?%d*)|(%d+)|(%x*)$')
local now = tonumber(clock)
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Lua would format large numbers as 1e+15.
local function integer(number)
  return string.format('%d', number)
end

-- The mark of a feed entry; '' if an older Florin wrote it.
local function mark_of(entry)
  local fields = entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == 'mark' then
      return fields[i + 1]
    end
  end
  return ''
end

local last_seq, last_mark

-- Sequence number of the last event; 0 before the first.
local function tail()
  if not last_seq then
    local entry = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
    last_seq = entry and tonumber(string.match(entry[1], '^%d+')) or 0
    last_mark = entry and mark_of(entry) or ''
  end
  return last_seq
end

if known ~= '0' then
  local entry = redis.call('XRANGE', KEYS[1], known .. '-0', known .. '-0')[1]
  local mark = entry and mark_of(entry) or ''
  if (not entry and tail() < tonumber(known)) or (mark ~= '' and known_mark ~= '' and mark ~= known_mark) then
    return redis.error_reply('REGRESSED event ' .. known)
  end
end

-- Append one event; data == nil means that the document was deleted.
local function emit(kind, id, data)
  last_seq = tail() + 1
  last_mark = string.sub(redis.sha1hex(
    table.concat({last_mark, kind, id, data and '+' .. data or '-'}, '\0')), 1, 16)
  local at = integer(last_seq) .. '-0'
  if data then
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', FEED_LENGTH, at,
      'kind', kind, 'id', id, 'data', data, 'mark', last_mark)
  else
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', FEED_LENGTH, at, 'kind', kind, 'id', id, 'mark', last_mark)
  end
end
