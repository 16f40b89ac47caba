-- claim.lua: claim a slot of an engine for a version. After prelude.lua and placement.lua.
--
-- KEYS[1..6]  as in placement.lua
-- KEYS[7]     the pins: hash version -> anything
-- KEYS[8…]    recency and leases of each ignored engine, in pairs
-- ARGV[3]  version         ARGV[4]  slots of the engine     ARGV[5]  owner of the claim
-- ARGV[6]  ttl of the claim, ms     ARGV[7]  '1' to reload     ARGV[8…]  the ignored engines
--
-- Returns {result, engine, victim or false}; results as in store.ClaimResult.
--
-- Atomic, because two workers must not both find that the version is not loading and that a slot is free or a
-- victim idle.

local version, slots, owner, ttl = ARGV[3], tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local reload = ARGV[7] == '1'

local LEAVING_MS = 5000   -- how long a version takes no new requests while another waits for its slot
local RENEW_MS = 500      -- minimum time between renewals of the mark
local ASKED_MS = 1500     -- a mark renewed this recently stays even if its version is claimed, because a request waits

local ignored = {}  -- engine -> the number of its recency key
for i = 8, #ARGV do
  ignored[ARGV[i]] = 8 + 2 * (i - 8)
end

-- Where else the version is: an engine that holds it, an engine that is loading it, and loads that are
-- overruled because their engine is ignored.
local function elsewhere()
  local holder, loader, overruled = nil, nil, {}
  for _, name in ipairs(homes(version)) do
    if name ~= engine then
      local state = standing(name, version)
      if ignored[name] then
        if state == 'loading' then
          overruled[#overruled + 1] = name
        end
      elseif state == 'resident' then
        holder = holder or name
      elseif state == 'loading' then
        loader = loader or name
      end
    end
  end
  return holder, loader, overruled
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
-- leaving, the one that is marked, and the unpinned.
local function survey()
  local used = leased()
  local idle, willing, leaving, unpinned = {}, {}, nil, 0
  local lost, drained = 0, 0
  for _, held in ipairs(redis.call('ZRANGE', RECENCY, 0, -1)) do
    if redis.call('HEXISTS', KEYS[7], held) == 0 then
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

-- Assign the slot to the claimer.
local function take(overruled, victim)
  for _, name in ipairs(overruled) do
    local key = ignored[name]
    forget(name, version, KEYS[key], KEYS[key + 1])
  end
  place(version, 'loading', owner, ttl)
  redis.call('ZADD', RECENCY, integer(now), version)
  return {'claimed', engine, victim or false}
end

local here, _, deadline = standing(engine, version)
if here == 'loading' then
  return {'loading', engine, false}
end
local holder, loader, overruled = elsewhere()

-- 1. It is already here.
if reload and (here == 'resident' or here == 'leaving' or here == 'lost') then
  if loader then
    return {'loading', loader, false}
  end
  return take(overruled)
end
if here == 'resident' or (here == 'leaving' and deadline - LEAVING_MS + ASKED_MS <= now) then
  if redis.call('HEXISTS', UNTIL, engine .. '/' .. version) == 1 then
    place(version, 'resident', '', 0)
  end
  return {'resident', engine, false}
end

-- 2. It is already elsewhere.
if holder then
  return {'resident', holder, false}
end
if loader then
  return {'loading', loader, false}
end
if here == 'leaving' then
  return {'full', engine, false}
end

-- 3. Its own lapsed claim, the slot reserved for it since its process died, or a free slot.
local over = redis.call('ZCARD', RECENCY) + 1 - slots
if here == 'lapsed' or here == 'lost' or over <= 0 then
  return take(overruled)
end

-- 4. A victim. More than one only if the engine now has fewer slots than before.
local idle, willing, leaving, unpinned = survey()
if #idle >= over then
  for i = 1, over do
    forget(engine, idle[i], RECENCY, LEASES)
  end
  return take(overruled, idle[1])
end
if unpinned < over then
  return {'pinned', engine, false}
end
ask_to_leave(willing, leaving)
return {'full', engine, false}
