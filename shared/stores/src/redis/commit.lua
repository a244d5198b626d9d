-- Applies commits in order, each wholly or not at all. All values are opaque bytes: of a record
-- or event only the first 16 characters, the id of the commit that wrote it, are compared.
--
-- KEYS: the clock, then for each commit: records (hash), events (list), one key for each run of
--       index changes.
-- ARGV: the caller's latest time, the number of commits, then for each commit
--         id, six 16-bit numbers in one text (how many guards, puts, removes, events, runs and
--         returns), guard fields, guard versions ('' demands absence), put fields and values in
--         turn, fields to remove, [number of the first event, events], for each run its signed
--         size (+n adds, -n removes) and members (adds: with the score before each), and fields
--         to return.
--       Each part lies in one piece, so that `unpack(ARGV, from, to)` needs no table of its own.
-- Gives {time, {applied, records...}, ...}; an absent record is nil.
--
-- Within a commit, what can fail for a key of the wrong type comes first, so that nothing is
-- written by halves: events where the guards have read the records, else records after the log's
-- length was read. A script's writes reach the append-only file and replicas as one transaction.

local ID = 16
-- The most arguments given to one command; a multiple of two.
local CHUNK = 500

-- Names that each commit uses many times: a local costs less than a field of a global.
local call, pick, piece = redis.call, unpack, string.sub
local ARGV, KEYS = ARGV, KEYS

local key, arg = 2, 3

-- Gives what the last command said.
local function chunked(command, name, from, to)
  while to - from >= CHUNK do
    call(command, name, pick(ARGV, from, from + CHUNK - 1))
    from = from + CHUNK
  end
  return from <= to and call(command, name, pick(ARGV, from, to))
end

-- Says whether a commit stands already: its id is where the commit would put it.
local function stands(id, records, put, puts, log, event, events)
  local there
  if events > 0 then
    there = call('LINDEX', log, ARGV[event])
  elseif puts > 0 then
    there = call('HGET', records, ARGV[put])
  end
  return there and piece(there, 1, ID) == id
end

-- Applies the next commit if all its guards hold and its events follow the last one without a
-- gap. An earlier call of this same commit is told by its id; that look is spared where what was
-- just read says that it does not stand yet, and so is the one at the log's length: what appends
-- the events tells it, and a gap takes them back. No table is made for the parts of a commit: that
-- would cost more than the commands do.
local function apply()
  local id = ARGV[arg]
  local guards, puts, removes, events, runs, returns =
    struct.unpack('<HHHHHH', ARGV[arg + 1])
  local guard = arg + 2
  local put = guard + 2 * guards
  local remove = put + 2 * puts
  local event = remove + removes
  arg = event + (events > 0 and events + 1 or 0)
  local records, log = KEYS[key], KEYS[key + 1]
  key = key + 2

  local holds, fresh = true, false
  if guards > 0 then
    local found = call('HMGET', records, pick(ARGV, guard, guard + guards - 1))
    for i = 1, guards do
      local version = found[i] and piece(found[i], 1, ID) or ''
      if version ~= ARGV[guard + guards + i - 1] then
        holds = false
      end
      if puts > 0 and ARGV[guard + i - 1] == ARGV[put] then
        fresh = version ~= id
      end
    end
  end
  local appended = events == 0
  if not appended then
    local first = tonumber(ARGV[event])
    if holds and fresh then
      appended = chunked('RPUSH', log, event + 1, event + events) == first + events
      if not appended then
        call('LTRIM', log, 0, -1 - events)
        holds, fresh = false, call('LLEN', log) <= first
      end
    else
      local length = call('LLEN', log)
      holds, fresh = holds and length == first, length <= first
    end
  end

  local standing = not fresh and stands(id, records, put, puts, log, event, events)
  local writing = holds and not standing
  if writing then
    chunked('HSET', records, put, put + 2 * puts - 1)
    chunked('HDEL', records, remove, remove + removes - 1)
    if not appended then
      chunked('RPUSH', log, event + 1, event + events)
    end
  end
  for _ = 1, runs do
    local size = tonumber(ARGV[arg])
    local width = size > 0 and 2 * size or -size
    if writing then
      chunked(size > 0 and 'ZADD' or 'ZREM', KEYS[key], arg + 1, arg + width)
    end
    key, arg = key + 1, arg + 1 + width
  end

  local answer = {}
  if returns > 0 then
    answer = call('HMGET', records, pick(ARGV, arg, arg + returns - 1))
    arg = arg + returns
  end
  table.insert(answer, 1, (writing or standing) and 1 or 0)
  return answer
end

local answers = { 0 }
for i = 1, tonumber(ARGV[2]) do
  answers[i + 1] = apply()
end

-- The time never goes back: it is the latest of Redis's clock, the latest stored by any process
-- and the caller's own. Storing it must not fail the call (out of memory, after commits that
-- were all refused): the next one stores it.
local time = call('TIME')
local last = tonumber(call('GET', KEYS[1]) or 0) or 0
local now = math.max(time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[1]), last)
if now > last then
  redis.pcall('SET', KEYS[1], string.format('%.0f', now))
end
answers[1] = now
return answers
