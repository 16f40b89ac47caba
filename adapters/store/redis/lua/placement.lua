-- placement.lua: follows the prelude in every script that changes placement.
--
-- KEYS[2]  placement: hash engine/version -> JSON of model.Placement
-- KEYS[3]  until: hash engine/version -> ms at which `loading` or `leaving` lapses
-- KEYS[4]  where: hash version -> names of the engines that it is assigned to, separated by spaces
-- KEYS[5]  recency of ARGV[2]: sorted set version -> ms of last use; its size is the number of slots taken
-- KEYS[6]  leases of ARGV[2]: hash version|worker -> ms at which the lease lapses; and version|worker|n -> its
--          requests in flight, which an earlier Florin reads as an expired lease
-- KEYS[7]  cached on ARGV[2]: sorted set version -> ms of last use, for versions without a slot
-- ARGV[2]  the engine
--
-- Provides: engine, standing(), homes(), place(), forget().

local PLACEMENT, UNTIL, WHERE, RECENCY, LEASES, CACHED = unpack(KEYS, 2, 7)
local engine = ARGV[2]

-- The current state of an assignment: nil, 'resident', 'cached', 'leaving', 'loading', 'lost' or 'lapsed' (a
-- load that ran out of time), with its owner and deadline. A lapsed `leaving` counts as resident.
local function standing(on, version)
  local id = on .. '/' .. version
  local text = redis.call('HGET', PLACEMENT, id)
  if not text then
    return nil
  end
  local record = cjson.decode(text)
  local deadline = tonumber(redis.call('HGET', UNTIL, id) or 0)
  local state = record.state
  if deadline <= now then
    if state == 'loading' then
      state = 'lapsed'
    elseif state == 'leaving' then
      state = 'resident'
    end
  end
  return state, record.owner or '', deadline
end

-- The engines that `version` is assigned to, earliest assignment first.
local function homes(version)
  local names = {}
  for name in string.gmatch(redis.call('HGET', WHERE, version) or '', '%S+') do
    names[#names + 1] = name
  end
  return names
end

-- A JSON string, encoded as by model.dump.
local function quote(text)
  return (string.gsub(cjson.encode(text), '\\/', '/'))
end

-- Set the state of `version` on this engine, whether already assigned or not. for_ms 0 means no expiry. An empty
-- `verified` is left out.
local function place(version, state, owner, for_ms, verified)
  local id = engine .. '/' .. version
  local text = '{"engine":' .. quote(engine) .. ',"version":' .. quote(version) .. ',"state":"' .. state
    .. '","owner":' .. quote(owner) .. ',"for_ms":' .. integer(for_ms)
    .. ((verified or '') ~= '' and ',"verified":' .. quote(verified) or '') .. '}'
  if redis.call('HSET', PLACEMENT, id, text) == 1 then
    local names = homes(version)
    names[#names + 1] = engine
    redis.call('HSET', WHERE, version, table.concat(names, ' '))
  end
  if for_ms > 0 then
    redis.call('HSET', UNTIL, id, integer(now + for_ms))
  else
    redis.call('HDEL', UNTIL, id)
  end
  emit('placement', id, text)
end

-- Remove the placement of `version` on an engine with the given recency and lease keys. On an engine other
-- than this one, it must not be cached.
local function forget(on, version, recency, leases)
  local id = on .. '/' .. version
  if redis.call('HDEL', PLACEMENT, id) == 0 then
    return
  end
  redis.call('HDEL', UNTIL, id)
  redis.call('ZREM', recency, version)
  if on == engine then
    redis.call('ZREM', CACHED, version)
  end
  for _, field in ipairs(redis.call('HKEYS', leases)) do
    if string.match(field, '^[^|]*') == version then
      redis.call('HDEL', leases, field)
    end
  end
  local others = {}
  for _, name in ipairs(homes(version)) do
    if name ~= on then
      others[#others + 1] = name
    end
  end
  if #others > 0 then
    redis.call('HSET', WHERE, version, table.concat(others, ' '))
  else
    redis.call('HDEL', WHERE, version)
  end
  emit('placement', id, nil)
end
