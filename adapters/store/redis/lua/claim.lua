-- claim.lua: claim a slot of an engine for a version. After prelude.lua and placement.lua.
--
-- KEYS[1..7]  as in placement.lua
-- KEYS[8]     the pins: hash version -> anything
-- KEYS[9…]    recency and leases of each ignored engine, in pairs
-- ARGV[3]  version     ARGV[4]  owner of the claim     ARGV[5]  its ttl, ms
-- ARGV[6]  slots of the engine     ARGV[7]  its slots and CPU memory together, in versions
-- ARGV[8]  '1' to reload     ARGV[9]  '1' for a replica     ARGV[10]  grace in ms if activated
-- ARGV[11]  engines that may hold the version; 0: any number     ARGV[12…]  the ignored engines
--
-- Returns {result, engine, victim or '', versions to unload…}; results as in ClaimResult.
--
-- Atomic, because two workers must not both find that the version is not loading and that a slot is free or a
-- victim idle.

local version, owner, ttl = ARGV[3], ARGV[4], tonumber(ARGV[5])
local slots, capacity = tonumber(ARGV[6]), tonumber(ARGV[7])
local reload, replica, grace = ARGV[8] == '1', ARGV[9] == '1', tonumber(ARGV[10])
local max_replicas = tonumber(ARGV[11])

local LEAVING_MS = 5000   -- how long a version takes no new requests while another waits for its slot
local RENEW_MS = 500      -- minimum time between renewals of the mark
local ASKED_MS = 1500     -- a mark renewed this recently stays even if its version is claimed, because a request waits

local ignored = {}  -- engine -> the number of its recency key
for i = 12, #ARGV do
  ignored[ARGV[i]] = 9 + 2 * (i - 12)
end

-- Where else a version is: the engines that hold it, those that are loading it, loads that are overruled
-- because their engine is ignored, and how many engines have it in a slot.
local function elsewhere(held)
  local holders, loaders, overruled, count = {}, {}, {}, 0
  for _, name in ipairs(homes(held)) do
    if name ~= engine then
      local state = standing(name, held)
      if ignored[name] then
        if state == 'loading' then
          overruled[#overruled + 1] = name
        end
      elseif state == 'resident' then
        holders[#holders + 1] = name
        count = count + 1
      elseif state == 'loading' then
        loaders[#loaders + 1] = name
        count = count + 1
      elseif state == 'leaving' then
        count = count + 1
      end
    end
  end
  return holders, loaders, overruled, count
end

-- Versions of this engine that are in use. Expired leases are deleted with their counts.
local function leased()
  local used = {}
  local all = redis.call('HGETALL', LEASES)
  for i = 1, #all, 2 do
    if not string.find(all[i], '|n$') then
      if tonumber(all[i + 1]) > now then
        used[string.match(all[i], '^[^|]*')] = true
      else
        redis.call('HDEL', LEASES, all[i], all[i] .. '|n')
      end
    end
  end
  return used
end

-- The versions in this engine's slots, least recently used first: those that can be evicted at once (lost
-- ones first, whatever leases remain from the dead process; then leaving ones), those that could be marked
-- leaving, the one that is marked, and how many are not pinned here. A pin protects a version's last holder.
local function survey()
  local used = leased()
  local idle, willing, leaving, unpinned = {}, {}, nil, 0
  local lost, drained = 0, 0
  for _, held in ipairs(redis.call('ZRANGE', RECENCY, 0, -1)) do
    if redis.call('HEXISTS', KEYS[8], held) == 0 or elsewhere(held)[1] then
      unpinned = unpinned + 1
      local state = standing(engine, held)
      if state == 'lost' then
        lost = lost + 1
        table.insert(idle, lost, held)
      elseif state ~= 'loading' and not used[held] then
        if state == 'leaving' then
          drained = drained + 1
          table.insert(idle, lost + drained, held)
        else
          idle[#idle + 1] = held
        end
      end
      if state == 'leaving' then
        leaving = leaving or held
      elseif state == 'resident' then
        willing[#willing + 1] = held
      end
    end
  end
  return idle, willing, leaving, unpinned
end

-- A version must drain: mark the least recently used one, or renew its mark. Not at every retry of every
-- waiter, because each renewal is an event.
local function ask_to_leave(willing, leaving)
  if not leaving then
    if willing[1] then
      place(willing[1], 'leaving', '', LEAVING_MS)
    end
    return
  end
  local _, _, deadline = standing(engine, leaving)
  if deadline - now <= LEAVING_MS - RENEW_MS then
    place(leaving, 'leaving', '', LEAVING_MS)
  end
end

-- Take the slots of the victims, and room for the version in both tiers. A victim that is loaded becomes
-- cached; the least recently used cached versions go where both tiers are full. Returns what to unload.
local function make_room(victims)
  local unload, demoted = {}, {}
  redis.call('ZREM', CACHED, version)
  for _, victim in ipairs(victims) do
    local state = standing(engine, victim)
    if state == 'resident' or state == 'leaving' then
      redis.call('ZADD', CACHED, redis.call('ZSCORE', RECENCY, victim), victim)
      redis.call('ZREM', RECENCY, victim)
      demoted[victim] = true
    else
      forget(engine, victim, RECENCY, LEASES)
      unload[#unload + 1] = victim
    end
  end
  redis.call('ZADD', RECENCY, integer(now), version)
  local excess = redis.call('ZCARD', RECENCY) + redis.call('ZCARD', CACHED) - capacity
  if excess > 0 then
    for _, dropped in ipairs(redis.call('ZRANGE', CACHED, 0, excess - 1)) do
      demoted[dropped] = nil
      forget(engine, dropped, RECENCY, LEASES)
      unload[#unload + 1] = dropped
    end
  end
  for _, victim in ipairs(victims) do
    if demoted[victim] then
      place(victim, 'cached', '', 0)
    end
  end
  return unload
end

local here, _, deadline = standing(engine, version)
local activate = here == 'cached' and not reload

-- Assign the slot to the claimer.
local function take(overruled, victims)
  for _, name in ipairs(overruled) do
    local key = ignored[name]
    forget(name, version, KEYS[key], KEYS[key + 1])
  end
  local unload = make_room(victims)
  if activate then
    place(version, 'resident', '', 0)
    if grace > 0 then
      redis.call('HSET', LEASES, version .. '|', integer(now + grace))
    end
  else
    place(version, 'loading', owner, ttl)
  end
  return {activate and 'activated' or 'claimed', engine, victims[1] or '', unpack(unload)}
end

if here == 'loading' then
  return {'loading', engine, ''}
end
local holders, loaders, overruled, count = elsewhere(version)
local enough = max_replicas > 0 and count >= max_replicas

-- 1. It is already here.
if reload and (here == 'resident' or here == 'leaving' or (here == 'lost' and not enough)) then
  if loaders[1] then
    return {'loading', loaders[1], ''}
  end
  return take(overruled, {})
end
if here == 'resident' or (here == 'leaving' and deadline - LEAVING_MS + ASKED_MS <= now) then
  if redis.call('HEXISTS', UNTIL, engine .. '/' .. version) == 1 then
    place(version, 'resident', '', 0)
  end
  return {'resident', engine, ''}
end

-- 2. It is already elsewhere, perhaps on its maximum of engines. Replicas at most double at a time.
if holders[1] and not replica then
  return {'resident', holders[1], ''}
end
local doubled = not activate and #loaders >= math.max(1, #holders)
if loaders[1] and (enough or doubled) then
  return {'loading', loaders[1], ''}
end
if enough or here == 'leaving' then
  return {'full', engine, ''}
end

-- 3. Its own lapsed claim, the slot reserved for it since its process died, or a free slot.
local over = redis.call('ZCARD', RECENCY) + 1 - slots
if here == 'lapsed' or here == 'lost' or over <= 0 then
  return take(overruled, {})
end

-- 4. A victim. More than one only if the engine now has fewer slots than before.
local idle, willing, leaving, unpinned = survey()
if #idle >= over then
  return take(overruled, {unpack(idle, 1, over)})
end
if unpinned < over then
  return {'pinned', engine, ''}
end
if not replica then  -- which is wanted, but not needed
  ask_to_leave(willing, leaving)
end
return {'full', engine, ''}
