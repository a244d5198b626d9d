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
-- written by halves: records, then (checked by then) events. A script's writes reach the
-- append-only file and replicas as one transaction.

local ID = 16
-- The most arguments given to one command; a multiple of two.
local CHUNK = 500

local key, arg = 2, 3

local function chunked(command, name, from, to)
  while from <= to do
    local last = math.min(from + CHUNK - 1, to)
    redis.call(command, name, unpack(ARGV, from, last))
    from = last + 1
  end
end

-- Says whether a commit may be written: all its guards hold and its events follow the last one
-- without a gap. An earlier call of this same commit is told by its id, which then stands where
-- the commit would put it; one look is spared where what was just read says that it does not.
-- Gives 'applied', 'allowed' or 'refused'.
local function judge(id, records, events, c)
  local holds, fresh = true, false
  if c.guards > 0 then
    local found = redis.call('HMGET', records, unpack(ARGV, c.guard, c.guard + c.guards - 1))
    for i = 1, c.guards do
      local version = found[i] and string.sub(found[i], 1, ID) or ''
      holds = holds and version == ARGV[c.guard + c.guards + i - 1]
      if c.puts > 0 and ARGV[c.guard + i - 1] == ARGV[c.put] then
        fresh = version ~= id
      end
    end
  end
  if c.events > 0 then
    local first, length = tonumber(ARGV[c.event]), redis.call('LLEN', events)
    holds = holds and length == first
    fresh = length <= first
  end
  if not fresh then
    local there
    if c.events > 0 then
      there = redis.call('LINDEX', events, ARGV[c.event])
    elseif c.puts > 0 then
      there = redis.call('HGET', records, ARGV[c.put])
    end
    if there and string.sub(there, 1, ID) == id then
      return 'applied'
    end
  end
  return holds and 'allowed' or 'refused'
end

local function write(records, events, c)
  chunked('HSET', records, c.put, c.put + 2 * c.puts - 1)
  chunked('HDEL', records, c.remove, c.remove + c.removes - 1)
  if c.events > 0 then
    chunked('RPUSH', events, c.event + 1, c.event + c.events)
  end
end

-- Walks the runs of index changes, making them if the commit is to be written.
local function indexes(c, writing)
  for _ = 1, c.runs do
    local size = tonumber(ARGV[arg])
    local width = size > 0 and 2 * size or -size
    if writing then
      chunked(size > 0 and 'ZADD' or 'ZREM', KEYS[key], arg + 1, arg + width)
    end
    key, arg = key + 1, arg + 1 + width
  end
end

local function apply()
  local id, c = ARGV[arg], {}
  c.guards, c.puts, c.removes, c.events, c.runs, c.returns =
    struct.unpack('<HHHHHH', ARGV[arg + 1])
  c.guard = arg + 2
  c.put = c.guard + 2 * c.guards
  c.remove = c.put + 2 * c.puts
  c.event = c.remove + c.removes
  arg = c.event + (c.events > 0 and c.events + 1 or 0)
  local records, events = KEYS[key], KEYS[key + 1]
  key = key + 2

  local verdict = judge(id, records, events, c)
  local writing = verdict == 'allowed'
  if writing then
    write(records, events, c)
  end
  indexes(c, writing)

  local answer = {}
  if c.returns > 0 then
    answer = redis.call('HMGET', records, unpack(ARGV, arg, arg + c.returns - 1))
    arg = arg + c.returns
  end
  table.insert(answer, 1, verdict == 'refused' and 0 or 1)
  return answer
end

local answers = { 0 }
for i = 1, tonumber(ARGV[2]) do
  answers[i + 1] = apply()
end

-- The time never goes back: it is the latest of Redis's clock, the latest stored by any process
-- and the caller's own. Storing it must not fail the call (out of memory, after commits that
-- were all refused): the next one stores it.
local time = redis.call('TIME')
local last = tonumber(redis.call('GET', KEYS[1]) or 0) or 0
local now = math.max(time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[1]), last)
if now > last then
  redis.pcall('SET', KEYS[1], string.format('%.0f', now))
end
answers[1] = now
return answers
