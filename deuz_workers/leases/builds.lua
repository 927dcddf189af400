-- Announcements of builds on Redis 6.2 or later and Valkey (no Cluster). One script, server time.
--
-- ARGV  prefix verb ...
--   announce at process ttl queue member...  -> {1 | 0}      1: no living process had announced this build at this queue
--   withdraw at process                      -> {}
--   find queue member                        -> {at | ''}    a build's queue at which a living process announced the member
--   forgotten keep                           -> {at ...}     at most 100 that nobody has announced for `keep` ms; told once
--
-- `at` is a build's own queue. Keys: <prefix>build:<at>, its processes; <prefix>can:<queue>:<member>, queues of builds that can;
-- <prefix>builds, all queues of builds. Each is a sorted set by the ms at which the announcement lapses. What a forged one costs
-- is a doorbell that nobody takes, and the sweep rings again.

local prefix, verb = ARGV[1], ARGV[2]
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local after_now = string.format('(%d', now)

local function lives(at) return redis.call('ZCOUNT', prefix .. 'build:' .. at, after_now, '+inf') > 0 end

if verb == 'announce' then
  local at, process, ttl, queue = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
  local until_ms = string.format('%d', now + ttl)
  local is_new = not lives(at)
  local function add(key, member)
    redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%d', now))
    redis.call('ZADD', key, until_ms, member)
    redis.call('PEXPIRE', key, ttl)
  end
  add(prefix .. 'build:' .. at, process)
  for i = 7, #ARGV do add(prefix .. 'can:' .. queue .. ':' .. ARGV[i], at) end
  redis.call('ZADD', prefix .. 'builds', until_ms, at)
  return {is_new and 1 or 0}
end

if verb == 'withdraw' then
  redis.call('ZREM', prefix .. 'build:' .. ARGV[3], ARGV[4])
  return {}
end

if verb == 'find' then
  for _, at in ipairs(redis.call('ZREVRANGEBYSCORE', prefix .. 'can:' .. ARGV[3] .. ':' .. ARGV[4], '+inf', after_now)) do
    if lives(at) then return {at} end
  end
  return {''}
end

if verb == 'forgotten' then
  local key = prefix .. 'builds'
  local found = redis.call('ZRANGEBYSCORE', key, '-inf', string.format('%d', now - tonumber(ARGV[3])), 'LIMIT', 0, 100)
  if #found > 0 then redis.call('ZREM', key, unpack(found)) end
  return found
end
return redis.error_reply('ERR unknown verb')
