-- Leases on Redis 6.2 or later and Valkey (no Cluster). One script, one call per verb, server time.
--
-- Every verb may be sent twice, since a client sends it again when its answer got lost: `owner` is new for every claim,
-- `nonce` for every call, and a call that comes again under its nonce is answered as it was the first time.
--
-- KEYS  1 the lease (hash)   2 queued cancel (string)   3 epoch of this memory (string)   4 token counter (one for all)
-- ARGV  verb nonce ...
--   acquire owner ttl mark force   -> {1, token, epoch, predecessor, mark}      predecessor: none | lapsed | mine
--                                   | {0, 'held', ms_left, owner}               the holder's release returns the mark `again`
--                                   | {0, 'young', ms_until_old, epoch}         nothing was claimed, see below
--   renew owner ttl mark token epoch -> {1, token, epoch, signal} | {0, 'gone'}  signal: '' | cancel | drain, told once
--   release owner token epoch      -> {1, again} | {0, 'gone'}                  again = 1: somebody rang meanwhile
--   signal kind                    -> {held}                                    kind: cancel (waits) | drain (holder only)
--   peek                           -> {ms_left | -1, epoch_age_ms, owner | ''}
--
-- The hash exists while the lease is held, or has lapsed without a release; a release deletes it, so an idle, suspended or
-- ended run leaves nothing behind. The token comes from one counter and so grows over releases; a flush starts it again.
--
-- `mark` is a revision in decimal digits, perhaps followed by a signature that only clients can check. A claim keeps the
-- higher one; a renewal replaces it, so that a forged one lasts until the first renewal at most.
--
-- The epoch, `<ms of birth>:<nonce>:<run_id of the server>`, names one uninterrupted memory: it is new after a flush, on
-- another server and after a restart. A hash that carries another epoch came back with a snapshot and may be older than what
-- its holder knows. While the memory is younger than a TTL, neither such a hash nor a missing one proves anything: a living
-- holder may not have renewed yet, and a claim would make that renewal answer 'gone'. So nothing is claimed without force.

local KEEP_MS = 86400000 -- lapsed leases and queued cancels are kept for a day: a claim looks at its row anyway

local verb, nonce = ARGV[1], ARGV[2]

local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local epoch = redis.call('GET', KEYS[3])
if not epoch or string.match(epoch, ':(%x+)$') ~= server then
  epoch = string.format('%d', now) .. ':' .. nonce .. ':' .. server
  redis.call('SET', KEYS[3], epoch)
end

local function born(of) return tonumber(string.match(of or '', '^%d+') or '0') end
local function revision(mark) return tonumber(string.match(mark or '', '^%d+') or '0') end

local age = now - born(epoch)
local row = redis.call('HMGET', KEYS[1], 'owner', 'token', 'until', 'epoch', 'nonce', 'predecessor', 'mark')
local held = {owner = row[1], token = row[2], epoch = row[4], nonce = row[5], predecessor = row[6], mark = row[7]}
local ms_left = tonumber(row[3] or '0') - now

local function grant(owner, ttl, token, mark)
  redis.call('HSET', KEYS[1], 'owner', owner, 'token', token, 'until', string.format('%d', now + ttl), 'epoch', epoch, 'mark', mark)
  redis.call('PEXPIRE', KEYS[1], ttl + KEEP_MS)
end

if verb == 'acquire' then
  local owner, ttl, mark, force = ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6] == '1'
  if held.mark and revision(held.mark) > revision(mark) then mark = held.mark end
  if held.owner == owner then
    grant(owner, ttl, held.token, mark)
    return {1, tonumber(held.token), epoch, held.nonce == nonce and held.predecessor or 'mine', mark}
  end
  if held.owner and ms_left > 0 then
    redis.call('HSET', KEYS[1], 'again', 1)
    return {0, 'held', ms_left, held.owner}
  end
  if held.epoch ~= epoch and age < ttl and not force then return {0, 'young', ttl - age, epoch} end
  local token = redis.call('INCR', KEYS[4])
  local predecessor = held.owner and 'lapsed' or 'none'
  redis.call('DEL', KEYS[1]) -- drops the predecessor's `again` and `drain`
  grant(owner, ttl, token, mark)
  redis.call('HSET', KEYS[1], 'nonce', nonce, 'predecessor', predecessor)
  return {1, token, epoch, predecessor, mark}
end

if verb == 'renew' then
  local owner, ttl, mark, token, known = ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6], ARGV[7]
  if held.owner ~= owner or held.token ~= token then
    if held.owner then
      local newer = born(known) > born(held.epoch)
        or (born(known) == born(held.epoch) and tonumber(token) > tonumber(held.token))
      if held.epoch == epoch or not newer then return {0, 'gone'} end
    elseif known == epoch then
      return {0, 'gone'} -- memory is whole: it was taken over and given back
    end
    if tonumber(redis.call('GET', KEYS[4]) or '0') < tonumber(token) then redis.call('SET', KEYS[4], token) end
    redis.call('DEL', KEYS[1])
  end
  grant(owner, ttl, token, mark)
  local signal = ''
  if redis.call('DEL', KEYS[2]) == 1 then
    signal = 'cancel'
  elseif redis.call('HDEL', KEYS[1], 'drain') == 1 then
    signal = 'drain'
  end
  return {1, tonumber(token), epoch, signal}
end

if verb == 'release' then
  local owner, token, known = ARGV[3], ARGV[4], ARGV[5]
  if held.owner == owner and held.token == token then
    local again = redis.call('HGET', KEYS[1], 'again')
    redis.call('DEL', KEYS[1])
    return {1, again and 1 or 0}
  end
  if not held.owner and known ~= epoch then return {1, 1} end -- forgotten, and with it whether somebody rang
  return {0, 'gone'}
end

if verb == 'signal' then
  if ARGV[3] == 'cancel' then
    redis.call('SET', KEYS[2], 1, 'PX', KEEP_MS)
  elseif held.owner then
    redis.call('HSET', KEYS[1], 'drain', 1)
  end
  return {(held.owner and ms_left > 0) and 1 or 0}
end

if verb == 'peek' then
  if held.owner and ms_left > 0 then return {ms_left, age, held.owner} end
  return {-1, age, ''}
end
return redis.error_reply('ERR unknown verb')
