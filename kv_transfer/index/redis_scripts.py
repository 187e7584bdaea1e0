"""Lua scripts that the Redis index runs inside Redis, so that each request of it is one round trip.

Keys of a service begin with its prefix. `<prefix>n` counts holder numbers. `<prefix>h<number>` is the record of one
holder's incarnation, its `Hello`, which expires with its lease; `<prefix>i<id>` has number and record of the holder's
last registration and expires with it. `<prefix>z` has the ids of all holders with the time at which their leases end.
`<prefix>b<2 bytes>` is a bucket: a hash of the names that begin with these bytes; the field is the rest of the name,
the value entries of 9 bytes: holder number (4), a bit per tier (1), time of expiry (4, seconds by Redis' own clock).
Values have at most 63 bytes and buckets few fields, so Redis keeps a bucket as one compact list.
"""

from typing import Final

ENTRY: Final = ">IBI"
ENTRY_BYTES: Final = 9
ENTRIES_MAX: Final = 7
"""Holders per name; a further one takes the place of those that are gone, or else of the entry that would expire
first."""
HOLDERS_MAX: Final = 4096
"""Holders that are told of one service."""
ID_BYTES_MAX: Final = 512
"""The longest id of a holder that is told."""
RECORD_BYTES_MAX: Final = 1 << 16
"""The longest record that is told. Whoever may write under a service's keys may leave anything there."""
RECORDS_MAX: Final = 512
"""Records that are told in one answer."""

REGISTER: Final = """
local prefix, record, lease_ms, id, first = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1'
local time, latest = redis.call('TIME'), prefix .. 'i' .. id
local before = first and redis.call('GET', latest)
if before then
  local key = prefix .. 'h' .. struct.unpack('>I4', before)
  if redis.call('GET', key) == string.sub(before, 5) then redis.call('DEL', key) end
end
redis.call('ZADD', prefix .. 'z', time[1] * 1000 + lease_ms, id)
local number = redis.call('INCR', prefix .. 'n')
redis.call('SET', prefix .. 'h' .. number, record, 'PX', lease_ms)
redis.call('SET', latest, struct.pack('>I4', number) .. record, 'PX', lease_ms)
return number
"""
"""A new number for an incarnation. One that registers for the first time takes the place of the one before it, whose
number stands for nothing from then on: it need not wait for its lease to end, and gives way in every name. Only the
first time: two processes under one id would else take turns at telling everything anew."""

RELEASE: Final = """
local key, record, id = ARGV[1] .. 'h' .. ARGV[2], ARGV[3], ARGV[4]
if redis.call('GET', key) ~= record then return 0 end
redis.call('ZREM', ARGV[1] .. 'z', id)
return redis.call('DEL', key)
"""
"""Void everything published under a number, if the number still stands for this incarnation: after a loss of data it
may belong to another holder."""

RENEW: Final = """
local key, record, lease_ms, id = ARGV[1] .. 'h' .. ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if redis.call('GET', key) ~= record then return 0 end
local time = redis.call('TIME')
redis.call('ZADD', ARGV[1] .. 'z', time[1] * 1000 + lease_ms, id)
redis.call('PEXPIRE', ARGV[1] .. 'i' .. id, lease_ms)
return redis.call('PEXPIRE', key, lease_ms)
"""
"""1 when the number still stands for this incarnation."""

HOLDERS: Final = f"""
local key, time = ARGV[1] .. 'z', redis.call('TIME')
redis.call('ZREMRANGEBYSCORE', key, '-inf', time[1] * 1000)
local answer = {{}}
for _, id in ipairs(redis.call('ZRANGE', key, 0, {HOLDERS_MAX} - 1)) do
  if #id <= {ID_BYTES_MAX} then answer[#answer + 1] = id end
end
return answer
"""
"""The ids of the holders that live, as far as an answer goes."""

CHANGE: Final = """
local prefix, number, place, ttl = ARGV[1], tonumber(ARGV[2]), 2 ^ tonumber(ARGV[3]), tonumber(ARGV[4])
local names, storing, most, record = ARGV[5], ARGV[6] == '1', tonumber(ARGV[7]), ARGV[8]
if redis.call('GET', prefix .. 'h' .. number) ~= record then return -1 end
local now = tonumber(redis.call('TIME')[1])
local call, pack, unpack, sub = redis.call, struct.pack, struct.unpack, string.sub
local mine = pack('>I4', number)
local function without_one(entries)
  local living, first, first_expiry = {}, nil, nil
  for _, entry in ipairs(entries) do
    if call('EXISTS', prefix .. 'h' .. unpack('>I4', entry)) == 1 then
      local expiry = unpack('>I4', entry, 6)
      living[#living + 1] = entry
      if not first_expiry or expiry < first_expiry then first, first_expiry = #living, expiry end
    end
  end
  if #living == #entries then table.remove(living, first) end
  return living
end
for at = 1, #names, 16 do
  local bucket, field = prefix .. 'b' .. sub(names, at, at + 1), sub(names, at + 2, at + 15)
  local value = call('HGET', bucket, field)
  local kept, tiers = {}, 0
  if value then
    for from = 1, #value, 9 do
      local entry = sub(value, from, from + 8)
      local held, expiry = unpack('>BI4', entry, 5)
      if expiry > now then
        if sub(entry, 1, 4) == mine then
          tiers = held
        else
          kept[#kept + 1] = entry
        end
      end
    end
  end
  if (math.floor(tiers / place) % 2 == 1) ~= storing then tiers = storing and tiers + place or tiers - place end
  if tiers > 0 then
    if #kept >= most then kept = without_one(kept) end
    kept[#kept + 1] = pack('>I4BI4', number, tiers, now + ttl)
  end
  if #kept > 0 then
    local left = table.concat(kept)
    if left ~= value then call('HSET', bucket, field, left) end
  elseif value then
    call('HDEL', bucket, field)
  end
  if storing then
    if call('EXPIRE', bucket, ttl, 'NX') == 0 then call('EXPIRE', bucket, ttl, 'GT') end
  end
end
return #names / 16
"""
"""Enter or withdraw names of one holder and tier; -1 when the number does not stand for this incarnation."""

LOOK_UP: Final = f"""
local prefix, names = ARGV[1], ARGV[2]
local now = tonumber(redis.call('TIME')[1])
local call, sub, unpack = redis.call, string.sub, struct.unpack
local rows, numbers, answer, told = {{}}, {{}}, {{}}, 0
for at = 1, #names, 16 do
  local value = call('HGET', prefix .. 'b' .. sub(names, at, at + 1), sub(names, at + 2, at + 15))
  if not value or #value > {ENTRIES_MAX * ENTRY_BYTES} then break end
  rows[#rows + 1] = struct.pack('B', #value / 9) .. value
  for from = 1, #value, 9 do numbers[sub(value, from, from + 3)] = true end
end
answer[1] = struct.pack('>I4', now) .. table.concat(rows)
for packed, _ in pairs(numbers) do
  local record = call('GET', prefix .. 'h' .. unpack('>I4', packed))
  if record and #record <= {RECORD_BYTES_MAX} and told < {RECORDS_MAX} then
    told = told + 1
    answer[#answer + 1] = packed
    answer[#answer + 1] = record
  end
end
return answer
"""
"""The time, the entries of the leading names that have any, then number and record of each live holder, as far as
an answer goes."""

SWEEP: Final = """
local prefix, from, to = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = tonumber(redis.call('TIME')[1])
local removed = 0
for number = from, to do
  local bucket = prefix .. 'b' .. struct.pack('>H', number)
  local all = redis.call('HGETALL', bucket)
  for at = 1, #all, 2 do
    local value, kept = all[at + 1], {}
    for start = 1, #value, 9 do
      if struct.unpack('>I4', value, start + 5) > now then kept[#kept + 1] = string.sub(value, start, start + 8) end
    end
    if #kept == 0 then
      redis.call('HDEL', bucket, all[at])
      removed = removed + 1
    elseif #kept * 9 < #value then
      redis.call('HSET', bucket, all[at], table.concat(kept))
    end
  end
end
return removed
"""
"""Withdraw the entries that have expired in a range of buckets; returns how many names no holder has any more."""
