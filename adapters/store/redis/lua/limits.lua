-- limits.lua: report use of limits and budgets, and lease shares of them. After prelude.lua.
--
-- KEYS[1]   the feed (unused: nothing here is an event)
-- KEYS[2…]  the subjects, each a cmsgpack of
--             flows     rates {level, at}: units × 60000, as of a time in ms; budgets {used, period, lapsed};
--                       false: unknown
--             workers   name -> {number, until, running, held, granted (6), spent (6)}
--             bookings  {at, digest, requests, tokens}, ascending
--             wanted    ms until which a request lacks a slot
-- ARGV[2]   JSON {do, …}: `lease` {worker, ttl, digest, again, reports}, `seed` {used}, `correct` {flow,
--           period, more, settled}, `look` {limits of each}. A report is an array in the order of `Report`,
--           without the subject.
--
-- Returns, for `lease`, {verdict, subject, flow, wait, booked, amounts reserved of each report, shares}; for
-- `look` the shares; see the protocol. Numbers are integers of up to 2^53.
--
-- Atomic, because a grant depends on everything granted before, and a request needs its tenant's and its
-- key's shares together.

local MINUTE, FLOWS, RATES = 60000, 6, 2
local GRANTED, SLOTS, BUDGET, RATE, UNSEEDED, STALE = 0, 1, 2, 3, 4, 5
local MOST_BOOKINGS, LAPSE = 128, 6000
local NEAR_PARTS, NEAR_REQUESTS = 10, 20
local WANTED = 1000              -- ms for which a lack of slots is remembered
local SOON = 1000                -- ms before its time at which a booking's digest is told to workers
local KEEP = 40 * 86400000       -- ms after which unused budgets are forgotten; then the ledger is asked
local KEEP_RATES = 600000

local call = cjson.decode(ARGV[2])

-- UTC day, or month (Howard Hinnant's civil_from_days).
local function period_of(flow)
  local day = math.floor(now / 86400000)
  if flow % 2 == 1 then
    return day
  end
  local era = math.floor((day + 719468) / 146097)
  local doe = day + 719468 - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524)
    - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local month = math.floor((5 * doy + 2) / 153)
  local year = yoe + era * 400 + (month >= 10 and 1 or 0)
  return year * 12 + (month < 10 and month + 2 or month - 10)
end

local function unspent(subject, flow)
  local sum = 0
  for _, worker in pairs(subject.workers) do
    sum = sum + math.max(0, worker[5][flow] - worker[6][flow])
  end
  return sum
end

-- Read a subject and bring it up to now: forget silent workers, begin periods, refill, let bookings lapse.
local function open(key, limits)
  local text = redis.call('GET', key)
  local subject = text and cmsgpack.unpack(text)
    or {flows = {false, false, false, false, false, false}, workers = {}, bookings = {}, wanted = 0}
  local silent = {}
  for name, worker in pairs(subject.workers) do
    if worker[2] <= now then
      silent[#silent + 1] = name
    end
  end
  for _, name in ipairs(silent) do
    local worker = subject.workers[name]
    for flow = RATES + 1, FLOWS do
      local budget = subject.flows[flow]
      if budget then
        budget[3] = budget[3] + math.max(0, worker[5][flow] - worker[6][flow])
      end
    end
    subject.workers[name] = nil
  end
  for flow = RATES + 1, FLOWS do
    local budget = subject.flows[flow]
    if budget and budget[2] < period_of(flow) then
      subject.flows[flow] = {unspent(subject, flow), period_of(flow), 0}
    end
  end
  local kept, freed, booked = {}, {0, 0}, {0, 0}
  for _, booking in ipairs(subject.bookings) do
    if booking[1] + LAPSE < now then
      freed = {freed[1] + booking[3], freed[2] + booking[4]}
    else
      booked = {booked[1] + booking[3], booked[2] + booking[4]}
      kept[#kept + 1] = booking
    end
  end
  subject.bookings = kept
  for flow = 1, RATES do
    local limit, rate = limits[flow], subject.flows[flow]
    if rate then
      rate[1] = rate[1] + freed[flow] * MINUTE
    end
    if limit >= 0 then
      rate = rate or {limit * MINUTE, now}
      local level = rate[1] + math.max(0, now - rate[2]) * limit
      subject.flows[flow] = {math.min(level, (limit - booked[flow]) * MINUTE), math.max(now, rate[2])}
    end
  end
  return subject
end

local function save(key, subject)
  local flows = subject.flows
  local budgets = flows[3] or flows[4] or flows[5] or flows[6]
  redis.call('SET', key, cmsgpack.pack(subject), 'PX', budgets and KEEP or KEEP_RATES)
end

-- Count an amount of a flow as used. Unlimited and unknown flows count nothing.
local function take(subject, limits, flow, amount)
  local state = subject.flows[flow]
  if amount ~= 0 and state and limits[flow] >= 0 then
    state[1] = state[1] + (flow <= RATES and -amount * MINUTE or amount)
  end
end

local function grant(subject, worker, limits, flow, amount)
  take(subject, limits, flow, amount)
  worker[5][flow] = worker[5][flow] + amount
end

-- What a flow has left.
local function left(subject, limits, flow)
  local state = subject.flows[flow]
  if not state then
    return 0
  end
  return flow <= RATES and math.floor(state[1] / MINUTE) or limits[flow] - state[1]
end

local function held(subject)
  local sum, running, idle = 0, 0, {}
  for name, worker in pairs(subject.workers) do
    sum, running = sum + worker[4], running + worker[3]
    idle[name] = math.max(0, worker[4] - worker[3])
  end
  return sum, running, idle
end

-- Settle what the worker has spent and gives back. Returns its record; nil if the call is stale.
local function account(subject, report, name)
  local limits, number, heard, granted, spent = report[1], report[3], report[4], report[5], report[6]
  local worker = subject.workers[name]
  if worker and number <= worker[1] then
    return nil
  end
  local fresh = not worker
  worker = worker or {0, 0, 0, 0, heard, spent}
  for flow = 1, FLOWS do
    local total = math.max(granted[flow], spent[flow])
    local more = total - worker[5][flow]
    if fresh and more < 0 then
      more = 0  -- its share has lapsed: there is nothing to give back
    end
    take(subject, limits, flow, more)
    worker[5][flow], worker[6][flow] = total, spent[flow]
  end
  worker[1], worker[2], worker[3], worker[4] = number, now + call.ttl, report[7], report[8]
  subject.workers[name] = worker
  return worker
end

local function share_of(subject, worker, name)
  local _, running, idle = held(subject)
  local others = 0
  for other, slots in pairs(idle) do
    if other ~= name then
      others = others + slots
    end
  end
  local levels, booked, used, shared, lapsed, due = {0, 0}, {0, 0}, {}, {}, {}, {}
  for flow = 1, FLOWS do
    local state = subject.flows[flow]
    if flow <= RATES then
      levels[flow] = state and math.floor(state[1] / MINUTE) or 0
    else
      used[#used + 1] = state and state[1] or -1
      shared[#shared + 1] = unspent(subject, flow)
      lapsed[#lapsed + 1] = state and state[3] or 0
    end
  end
  for _, booking in ipairs(subject.bookings) do
    booked = {booked[1] + booking[3], booked[2] + booking[4]}
    if booking[1] <= now + SOON then
      due[#due + 1] = booking[2]
    end
  end
  return {worker and worker[5] or {0, 0, 0, 0, 0, 0}, worker and worker[4] or 0, levels, booked, used, shared,
    lapsed, running, others, subject.wanted > now and 1 or 0, due}
end

if call['do'] == 'seed' then
  local subject = open(KEYS[2], {-1, -1})
  for flow, used in pairs(call.used) do
    flow = tonumber(flow) + 1
    if not subject.flows[flow] then
      subject.flows[flow] = {used + unspent(subject, flow), period_of(flow), 0}
    end
  end
  save(KEYS[2], subject)
  return 1
end

if call['do'] == 'correct' then
  local subject = open(KEYS[2], {-1, -1})
  local budget = subject.flows[call.flow + 1]
  if budget and budget[2] == call.period then
    budget[1] = math.max(0, budget[1] + call.more)
    budget[3] = math.max(0, budget[3] - call.settled)
    save(KEYS[2], subject)
  end
  return 1
end

if call['do'] == 'look' then
  local shares = {}
  for i, limits in ipairs(call.limits) do
    shares[i] = share_of(open(KEYS[i + 1], limits), nil, '')
  end
  return shares
end

local subjects, workers, reports = {}, {}, call.reports
for i, report in ipairs(reports) do
  subjects[i] = open(KEYS[i + 1], report[1])
  workers[i] = account(subjects[i], report, call.worker)
  if not workers[i] then
    return {STALE, i - 1, 0, 0, 0, {}, {}}
  end
end

-- What a report's need is, near the end of a budget.
local function wanted_of(i, flow)
  local report, need = reports[i], reports[i][9][flow]
  if flow > RATES and report[1][flow] >= 0 and need > 0 then
    local rest, worst = left(subjects[i], report[1], flow), report[10][flow]
    if rest * NEAR_PARTS < report[1][flow] or rest < NEAR_REQUESTS * worst then
      if worst > rest and unspent(subjects[i], flow) == 0 then
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
    if booking[2] == call.digest then
      return place, booking
    end
  end
end

-- Returns verdict, subject, flow, wait in ms, and for each report the place of the booking to use.
local function judge()
  local needed, wait, where, what = false, 0, 0, 0
  local places, early = {}, 0
  for i, report in ipairs(reports) do
    local subject, limits = subjects[i], report[1]
    if report[11] > 0 and report[2] >= 0 and report[2] - held(subject) < report[11] then
      subject.wanted = now + WANTED
      return SLOTS, i - 1, 0, 0, places
    end
    for flow = RATES + 1, FLOWS do
      local need = report[9][flow]
      if limits[flow] >= 0 and need > 0 then
        if not subject.flows[flow] then
          return UNSEEDED, i - 1, flow - 1, 0, places
        end
        if wanted_of(i, flow) > left(subject, limits, flow) then
          return BUDGET, i - 1, flow - 1, 0, places
        end
      end
    end
  end
  local due = call.digest ~= ''
  for i, report in ipairs(reports) do
    local rated = (report[1][1] >= 0 and report[9][1] > 0) or (report[1][2] >= 0 and report[9][2] > 0)
    if rated then
      local place, booking = booking_of(i)
      places[i] = place
      if not booking or booking[1] > now then
        due = false
      end
      early = booking and math.max(early, booking[1] - now) or early
    end
    for flow = 1, RATES do
      local limit, need = report[1][flow], report[9][flow] * MINUTE
      if limit >= 0 and need > 0 and subjects[i].flows[flow][1] < need then
        local lacking = need - subjects[i].flows[flow][1]
        local ms = limit > 0 and math.ceil(lacking / limit) or 60000
        if ms > wait then
          wait, where, what = ms, i - 1, flow - 1
        end
      end
    end
  end
  if due and next(places) then
    return GRANTED, 0, 0, 0, places
  end
  if wait > 0 and call.again and early > 0 then
    return RATE, where, what, early, nil
  end
  if wait > 0 then
    return RATE, where, what, wait, {}
  end
  return GRANTED, 0, 0, 0, {}
end

local verdict, where, what, wait, places = judge()
local booked, reserved = 0, {}
if verdict == GRANTED then
  for i, report in ipairs(reports) do
    local subject, worker, limits, amounts = subjects[i], workers[i], report[1], {}
    if places[i] then  -- it was taken when the booking was made
      local booking = table.remove(subject.bookings, places[i])
      take(subject, limits, 1, -booking[3])
      take(subject, limits, 2, -booking[4])
    end
    for flow = 1, FLOWS do
      amounts[flow] = wanted_of(i, flow)
    end
    for flow = 1, FLOWS do
      grant(subject, worker, limits, flow, amounts[flow])
    end
    worker[4] = worker[4] + report[11]
    reserved[i] = amounts
  end
elseif verdict == RATE and not places then  -- the client was told before when to come
  booked = 1
elseif verdict == RATE and call.digest ~= '' then
  local room = true
  for i in ipairs(reports) do
    room = room and #subjects[i].bookings < MOST_BOOKINGS
  end
  if room then
    booked = 1
    for i, report in ipairs(reports) do
      local limits, need = report[1], report[9]
      if (limits[1] >= 0 and need[1] > 0) or (limits[2] >= 0 and need[2] > 0) then
        local bookings = subjects[i].bookings
        local place = #bookings + 1
        while place > 1 and bookings[place - 1][1] > now + wait do
          place = place - 1
        end
        table.insert(bookings, place, {now + wait, call.digest, need[1], need[2]})
        take(subjects[i], limits, 1, need[1])
        take(subjects[i], limits, 2, need[2])
      end
    end
  end
end

-- Shares for requests to come: at most a quarter of what is left, and none that a waiting request lacks.
local shares = {}
for i, report in ipairs(reports) do
  local subject, worker, limits = subjects[i], workers[i], report[1]
  for flow = 1, FLOWS do
    local more = report[12][flow]
    if more > 0 and limits[flow] >= 0 and subject.flows[flow] and #subject.bookings == 0 then
      local rest = left(subject, limits, flow)
      if flow <= RATES or rest * NEAR_PARTS >= limits[flow] then
        grant(subject, worker, limits, flow, math.max(0, math.min(more, math.floor(rest / 4))))
      end
    end
  end
  if report[13] > 0 and report[2] >= 0 and subject.wanted <= now then
    local rest = report[2] - held(subject)
    worker[4] = worker[4] + math.max(0, math.min(report[13], math.floor(rest / 4)))
  end
  save(KEYS[i + 1], subject)
  shares[i] = share_of(subject, worker, call.worker)
end
return {verdict, where, what, wait, booked, reserved, shares}
