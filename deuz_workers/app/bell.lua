-- Doorbells of one queue on Redis 6.2 or later and Valkey (no Cluster): the look at the window and the push are one act.
--
-- KEYS  1..n the lists of the queue, by priority; then the window (hash: size while it is above `least`, most ever held);
--       then who feeds (string that lapses)
-- ARGV  verb least ...
--   push spare (list message)...  -> {taken, waiting, size}   the first `taken` are in the queue, for the others is no room;
--                                                             spare = 1: they may take the places that are kept for the sweep
--   look size apart_ms            -> {may_feed, waiting, size} size: the window is to have, '' as it is; never below what
--                                                             waits. apart_ms > 0: may_feed = 1 once in so long, if there is room
--
-- `waiting` counts every message of the queue, so that what others put there leaves less room.

local MOST_SPARE = 16

local lists = #KEYS - 2
local window, feeder = KEYS[lists + 1], KEYS[lists + 2]
local verb, least = ARGV[1], tonumber(ARGV[2])

local waiting = 0
for n = 1, lists do waiting = waiting + redis.call('LLEN', KEYS[n]) end
local kept = redis.call('HMGET', window, 'size', 'most')
local size = math.max(least, tonumber(kept[1] or '0'))

local function spare_places(of)
  if of < 2 then return 0 end
  return math.max(1, math.min(MOST_SPARE, math.floor(of / 4)))
end

if verb == 'push' then
  local limit, taken = size, 0
  if ARGV[3] ~= '1' then limit = size - spare_places(size) end
  for n = 4, #ARGV, 2 do
    if waiting >= limit then break end
    redis.call('LPUSH', KEYS[tonumber(ARGV[n])], ARGV[n + 1])
    waiting, taken = waiting + 1, taken + 1
  end
  if taken > 0 and waiting > tonumber(kept[2] or '0') then redis.call('HSET', window, 'most', waiting) end
  return {taken, waiting, size}
end

if ARGV[3] ~= '' then
  size = math.max(least, tonumber(ARGV[3]), waiting)
  if size > least then redis.call('HSET', window, 'size', size) else redis.call('HDEL', window, 'size') end
end
local apart_ms = tonumber(ARGV[4])
local may_feed = 1
if apart_ms > 0 and (waiting >= size or not redis.call('SET', feeder, '1', 'NX', 'PX', apart_ms)) then may_feed = 0 end
return {may_feed, waiting, size}
