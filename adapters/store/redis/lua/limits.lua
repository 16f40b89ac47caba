-- limits.lua: report use of limits, and lease shares of them. After prelude.lua.
--
-- KEYS[1]   the feed (unused: nothing here is an event)
-- KEYS[2…]  the subjects, each a cmsgpack of
--             flows     name -> state. A rate: {level, at}, level in units × window, as of a time in ms. A
--                       budget: {used}, of a period {period, lapsed}, rolling {window, slices}, each slice
--                       {number, what was settled in it}. Each with `till`, the ms from which on it may be
--                       forgotten
--             workers   name -> {number, till, running, held, flows: name -> {granted, spent}}
--             bookings  {at, digest, amounts: name -> units}, ascending
--             wanted    ms until which a request lacks a slot
--             till      ms from which on all of it is forgotten
--           for `lease`, then as many families, each a sorted set of its subjects by `till`; the feed where
--           a subject has none
-- ARGV[2]   JSON {do, …}: `lease` {worker, ttl, digest, again, reports}, `seed` {flows, used}, `correct`
--           {flow, period, more, settled}, `look` {looks}. Reports and flows are as in the protocol.
--
-- Returns, for `lease`, {verdict, subject, flow, wait, booked, amounts reserved of each report, shares}; for
-- `look` the shares; see the protocol. Numbers are integers of up to 2^53.
--
-- Atomic, because a grant depends on everything granted before, and a request needs the shares of all its
-- subjects together.

local RATE, PERIOD, ROLLING = 0, 1, 2
local GRANTED, SLOTS, BUDGET, RATED, UNSEEDED, STALE, CROWDED = 0, 1, 2, 3, 4, 5, 6
local MOST_BOOKINGS, LAPSE = 128, 6000
local NEAR_PARTS, NEAR_REQUESTS = 10, 20
local SLICES = 30
local WANTED = 1000              -- ms for which a lack of slots is remembered
local SOON = 1000                -- ms before its time at which a booking's digest is told to workers
local KEEP = 40 * 86400000       -- ms after which unused budgets are forgotten; then the ledger is asked
local KEEP_OTHERS = 600000       -- likewise rates and slots
local KEEP_FAMILY = 60000        -- likewise those of a family; its budgets, once they count no more

local FORGOTTEN = 100            -- members of a family that a call removes at most

local call = cjson.decode(ARGV[2])

local function unspent(subject, name)
  local sum = 0
  for _, worker in pairs(subject.workers) do
    local share = worker.flows[name]
    sum = sum + (share and math.max(0, share[1] - share[2]) or 0)
  end
  return sum
end

-- The period of a budget that has begun, and when the next one begins.
local function begun(flow)
  local period, following = flow.window[1], nil
  for _, start in ipairs(flow.window) do
    if start <= now then
      period = start
    elseif not following then
      following = start
    end
  end
  return period, following
end

local function new_budget(subject, flow, used)
  local state = {used = used + unspent(subject, flow.name), till = now + KEEP}
  if flow.kind == PERIOD then
    state.period, state.lapsed = begun(flow), 0
  else
    state.window, state.slices = flow.window[1], {}
  end
  subject.flows[flow.name] = state
end

-- Read a subject and bring it up to now: forget silent workers, begin periods, refill, let bookings lapse.
local function open(key, flows, limits, family)
  local text = redis.call('GET', key)
  local subject = text and cmsgpack.unpack(text)
  local known = subject and subject.till > now
  if not known then
    subject = {flows = {}, workers = {}, bookings = {}, wanted = 0}
  end
  local silent = {}
  for name, worker in pairs(subject.workers) do
    if worker.till <= now then
      silent[#silent + 1] = name
    end
  end
  for _, name in ipairs(silent) do
    for flow, share in pairs(subject.workers[name].flows) do
      local budget = subject.flows[flow]
      if budget and budget.lapsed then
        budget.lapsed = budget.lapsed + math.max(0, share[1] - share[2])
      end
    end
    subject.workers[name] = nil
  end
  local kept, freed, booked = {}, {}, {}
  for _, booking in ipairs(subject.bookings) do
    local sums = booking.at + LAPSE < now and freed or booked
    for name, amount in pairs(booking.amounts) do
      sums[name] = (sums[name] or 0) + amount
    end
    if sums == booked then
      kept[#kept + 1] = booking
    end
  end
  subject.bookings = kept
  for name, amount in pairs(freed) do
    local rate = subject.flows[name]
    if rate then
      rate.level = rate.level + amount * rate.window
    end
  end
  for i, flow in ipairs(flows) do
    local state, limit = subject.flows[flow.name], limits[i]
    if flow.kind == RATE then
      local window = flow.window[1]
      state = state or {level = limit * window, at = now}
      local level = state.level + math.max(0, now - state.at) * limit
      level = math.min(level, (limit - (booked[flow.name] or 0)) * window)
      subject.flows[flow.name] = {level = level, at = math.max(now, state.at), window = window}
    elseif not state then
      if family then
        new_budget(subject, flow, 0)
      end
    elseif flow.kind == PERIOD then
      if state.period < begun(flow) then
        new_budget(subject, flow, 0)
      end
    else
      local oldest, slices = math.floor(now / (state.window / SLICES)) - SLICES, {}
      for _, slice in ipairs(state.slices) do
        if slice[1] < oldest then
          state.used = state.used - slice[2]
        else
          slices[#slices + 1] = slice
        end
      end
      state.slices = slices
    end
  end
  return subject, known
end

-- Note in a rolling budget's present slice what was settled since it was saved last.
local function settle(subject, name, state)
  local settled, number = state.used - unspent(subject, name), math.floor(now / (state.window / SLICES))
  for _, slice in ipairs(state.slices) do
    settled = settled - slice[2]
  end
  local slices = state.slices
  while settled < 0 and #slices > 0 do
    local back = math.min(-settled, slices[#slices][2])
    settled, slices[#slices][2] = settled + back, slices[#slices][2] - back
    if slices[#slices][2] == 0 then
      slices[#slices] = nil
    end
  end
  if settled > 0 and #slices > 0 and slices[#slices][1] >= number then
    slices[#slices][2] = slices[#slices][2] + settled
  elseif settled > 0 then
    slices[#slices + 1] = {number, settled}
  end
end

local function save(key, subject, flows, family)
  for _, flow in ipairs(flows) do
    local state, till = subject.flows[flow.name], now + KEEP
    if flow.kind == RATE then
      till = now + 10 * flow.window[1]
    elseif family and flow.kind == PERIOD then
      local _, following = begun(flow)
      till = following or till
    elseif family then
      till = now + flow.window[1] * (SLICES + 1) / SLICES
    end
    if state then
      state.till = till
    end
  end
  local till = now + (family and KEEP_FAMILY or KEEP_OTHERS)
  local kept = {}
  for name, state in pairs(subject.flows) do
    if state.slices then
      settle(subject, name, state)
    end
    if state.till > now then  -- a limit that was removed is forgotten
      kept[name], till = state, math.max(till, state.till)
    end
  end
  subject.flows, subject.till = kept, till
  redis.call('SET', key, cmsgpack.pack(subject), 'PX', math.ceil(till - now))
  if family then
    redis.call('ZADD', family, math.ceil(till), key)
    redis.call('PEXPIRE', family, KEEP)
  end
end

-- Count an amount of a flow as used. Unknown budgets count nothing.
local function take(subject, flow, amount)
  local state = subject.flows[flow.name]
  if amount ~= 0 and state then
    if flow.kind == RATE then
      state.level = state.level - amount * flow.window[1]
    else
      state.used = state.used + amount
    end
  end
end

local function grant(subject, worker, flow, amount)
  take(subject, flow, amount)
  worker.flows[flow.name][1] = worker.flows[flow.name][1] + amount
end

-- What a flow has left.
local function left(subject, flow, limit)
  local state = subject.flows[flow.name]
  if not state then
    return 0
  end
  return flow.kind == RATE and math.floor(state.level / flow.window[1]) or limit - state.used
end

local function held(subject)
  local sum, running, idle = 0, 0, {}
  for name, worker in pairs(subject.workers) do
    sum, running = sum + worker.held, running + worker.running
    idle[name] = math.max(0, worker.held - worker.running)
  end
  return sum, running, idle
end

-- Settle what the worker has spent and gives back. Returns its record; nil if the call is stale.
local function account(subject, report, name)
  local worker = subject.workers[name]
  if worker and report.number <= worker.number then
    return nil
  end
  worker = worker or {flows = {}}
  for i, flow in ipairs(report.flows) do
    local share, spent = worker.flows[flow.name], report.spent[i] or 0
    local total = math.max(report.granted[i] or 0, spent)
    local more = total - (share and share[1] or report.heard[i] or 0)
    if not share and more < 0 then
      more = 0  -- its share has lapsed: there is nothing to give back
    end
    take(subject, flow, more)
    worker.flows[flow.name] = {total, spent}
  end
  worker.number, worker.till = report.number, now + call.ttl
  worker.running, worker.held = report.running, report.held
  subject.workers[name] = worker
  return worker
end

local function share_of(subject, flows, limits, worker, name)
  local _, running, idle = held(subject)
  local others = 0
  for other, slots in pairs(idle) do
    if other ~= name then
      others = others + slots
    end
  end
  local granted, used, booked, shared, lapsed, due = {}, {}, {}, {}, {}, {}
  for i, flow in ipairs(flows) do
    local state = subject.flows[flow.name]
    granted[i], booked[i] = worker and worker.flows[flow.name][1] or 0, 0
    used[i] = state and limits[i] - left(subject, flow, limits[i]) or -1
    shared[i] = flow.kind ~= RATE and unspent(subject, flow.name) or 0
    lapsed[i] = state and state.lapsed or 0
    for _, booking in ipairs(subject.bookings) do
      booked[i] = booked[i] + (booking.amounts[flow.name] or 0)
    end
  end
  for _, booking in ipairs(subject.bookings) do
    if booking.at <= now + SOON then
      due[#due + 1] = booking.digest
    end
  end
  return {granted, worker and worker.held or 0, used, booked, shared, lapsed, running, others,
    subject.wanted > now and 1 or 0, due}
end

if call['do'] == 'seed' then
  local subject = open(KEYS[2], {}, {})
  for i, flow in ipairs(call.flows) do
    if not subject.flows[flow.name] then
      new_budget(subject, flow, call.used[i])
    end
  end
  save(KEYS[2], subject, {})
  return 1
end

if call['do'] == 'correct' then
  local subject = open(KEYS[2], {}, {})
  local budget = subject.flows[call.flow]
  if budget and (not budget.period or budget.period == call.period) then
    budget.used = math.max(0, budget.used + call.more)
    if budget.lapsed then
      budget.lapsed = math.max(0, budget.lapsed - call.settled)
    end
    save(KEYS[2], subject, {})
  end
  return 1
end

if call['do'] == 'look' then
  local shares = {}
  for i, look in ipairs(call.looks) do
    local subject = open(KEYS[i + 1], look.flows, look.limits)
    shares[i] = share_of(subject, look.flows, look.limits, nil, '')
  end
  return shares
end

local subjects, workers, reports, families = {}, {}, call.reports, {}
for i, report in ipairs(reports) do
  families[i] = report.family ~= '' and KEYS[1 + #reports + i] or nil
  local known
  subjects[i], known = open(KEYS[i + 1], report.flows, report.limits, families[i])
  if families[i] and not known and (#report.need > 0 or report.need_slots > 0) then
    for _, gone in ipairs(redis.call('ZRANGE', families[i], '-inf', now, 'BYSCORE', 'LIMIT', 0, FORGOTTEN)) do
      redis.call('ZREM', families[i], gone)
    end
    if redis.call('ZCARD', families[i]) >= report.most then
      return {CROWDED, i - 1, 0, 0, 0, {}, {}}
    end
  end
  workers[i] = account(subjects[i], report, call.worker)
  if not workers[i] then
    return {STALE, i - 1, 0, 0, 0, {}, {}}
  end
end

-- What a report's need is, near the end of a budget.
local function wanted_of(i, f)
  local report, flow, limit = reports[i], reports[i].flows[f], reports[i].limits[f]
  local need = report.need[f] or 0
  if flow.kind ~= RATE and need > 0 then
    local rest, worst = left(subjects[i], flow, limit), report.worst[f] or 0
    if rest * NEAR_PARTS < limit or rest < NEAR_REQUESTS * worst then
      if worst > rest and unspent(subjects[i], flow.name) == 0 then
        worst = rest  -- the last request; beside others, more than one would exceed what is left
      end
      return math.max(worst, math.min(need, 1))
    end
  end
  return need
end

-- Where a booking of the request lies that can be used now, or one that is not due yet.
local function booking_of(i)
  for place, booking in ipairs(subjects[i].bookings) do
    if booking.digest == call.digest then
      return place, booking
    end
  end
end

-- What a report needs of rates, by name; nil: nothing.
local function rated(report)
  local amounts
  for f, flow in ipairs(report.flows) do
    if flow.kind == RATE and (report.need[f] or 0) > 0 then
      amounts = amounts or {}
      amounts[flow.name] = report.need[f]
    end
  end
  return amounts
end

-- Returns verdict, subject, flow, wait in ms, and for each report the place of the booking to use.
local function judge()
  local wait, where, what = 0, 0, 0
  local places, early = {}, 0
  for i, report in ipairs(reports) do
    local subject = subjects[i]
    if report.need_slots > 0 and report.slots >= 0 and report.slots - held(subject) < report.need_slots then
      subject.wanted = now + WANTED
      return SLOTS, i - 1, 0, 0, places
    end
    for f, flow in ipairs(report.flows) do
      if flow.kind ~= RATE and (report.need[f] or 0) > 0 then
        if not subject.flows[flow.name] then
          return UNSEEDED, i - 1, f - 1, 0, places
        end
        if wanted_of(i, f) > left(subject, flow, report.limits[f]) then
          return BUDGET, i - 1, f - 1, 0, places
        end
      end
    end
  end
  local due = call.digest ~= ''
  for i, report in ipairs(reports) do
    if rated(report) then
      local place, booking = booking_of(i)
      places[i] = place
      if not booking or booking.at > now then
        due = false
      end
      early = booking and math.max(early, booking.at - now) or early
    end
    for f, flow in ipairs(report.flows) do
      if flow.kind == RATE then
        local limit, need = report.limits[f], (report.need[f] or 0) * flow.window[1]
        local level = subjects[i].flows[flow.name].level
        if need > 0 and level < need then
          local ms = limit > 0 and math.ceil((need - level) / limit) or 60000
          if ms > wait then
            wait, where, what = ms, i - 1, f - 1
          end
        end
      end
    end
  end
  if due and next(places) then
    return GRANTED, 0, 0, 0, places
  end
  if wait > 0 and call.again and early > 0 then
    return RATED, where, what, early, nil
  end
  if wait > 0 then
    return RATED, where, what, wait, {}
  end
  return GRANTED, 0, 0, 0, {}
end

local verdict, where, what, wait, places = judge()
local booked, reserved = 0, {}
if verdict == GRANTED then
  for i, report in ipairs(reports) do
    local subject, worker, amounts = subjects[i], workers[i], {}
    if places[i] then  -- it was taken when the booking was made
      local booking = table.remove(subject.bookings, places[i])
      for _, flow in ipairs(report.flows) do
        take(subject, flow, -(booking.amounts[flow.name] or 0))
      end
    end
    for f in ipairs(report.flows) do
      amounts[f] = wanted_of(i, f)
    end
    for f, flow in ipairs(report.flows) do
      grant(subject, worker, flow, amounts[f])
    end
    worker.held = worker.held + report.need_slots
    reserved[i] = amounts
  end
elseif verdict == RATED and not places then  -- the client was told before when to come
  booked = 1
elseif verdict == RATED and call.digest ~= '' then
  local room = true
  for i in ipairs(reports) do
    room = room and #subjects[i].bookings < MOST_BOOKINGS
  end
  if room then
    booked = 1
    for i, report in ipairs(reports) do
      local amounts = rated(report)
      if amounts then
        local bookings = subjects[i].bookings
        local place = #bookings + 1
        while place > 1 and bookings[place - 1].at > now + wait do
          place = place - 1
        end
        table.insert(bookings, place, {at = now + wait, digest = call.digest, amounts = amounts})
        for _, flow in ipairs(report.flows) do
          take(subjects[i], flow, amounts[flow.name] or 0)
        end
      end
    end
  end
end

-- Shares for requests to come: at most a quarter of what is left, and none that a waiting request lacks.
local shares = {}
for i, report in ipairs(reports) do
  local subject, worker = subjects[i], workers[i]
  for f, flow in ipairs(report.flows) do
    local more, limit = report.more[f] or 0, report.limits[f]
    if more > 0 and subject.flows[flow.name] and #subject.bookings == 0 then
      local rest = left(subject, flow, limit)
      if flow.kind == RATE or rest * NEAR_PARTS >= limit then
        grant(subject, worker, flow, math.max(0, math.min(more, math.floor(rest / 4))))
      end
    end
  end
  if report.more_slots > 0 and report.slots >= 0 and subject.wanted <= now then
    local rest = report.slots - held(subject)
    worker.held = worker.held + math.max(0, math.min(report.more_slots, math.floor(rest / 4)))
  end
  save(KEYS[i + 1], subject, report.flows, families[i])
  shares[i] = share_of(subject, report.flows, report.limits, worker, call.worker)
end
return {verdict, where, what, wait, booked, reserved, shares}
