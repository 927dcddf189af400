-- What operators say about everything that begins: brakes, and rates per minute.

-- name: controls
-- One row at least, for the time. Rates of keys may be many: whether there are any is all that everybody reads.
select floor(extract(epoch from c.now) * 1000)::bigint as now_ms,
       exists (select 1 from rate r where r.kind = 'key') as has_key_rates,
       x.what, x.kind, x.name, x.reason, x.actor, x.at_ms, x.has_rate, x.at_a_time
from (select coalesce(to_timestamp(%(now_ms)s::float8 / 1000), now()) as now) c
left join (
    select 'brake' as what, b.kind, b.name, b.reason, b.actor, floor(extract(epoch from b.at) * 1000)::bigint as at_ms,
           false as has_rate, null::bigint as at_a_time
    from brake b
    union all
    select 'rate', r.kind, r.name, null, null, 0, r.calls_per_minute is not null or r.tokens_per_minute is not null, r.at_a_time
    from rate r where r.kind <> 'key'
) x on true
order by x.what, x.kind, x.name;

-- name: set_brake
with
-- include: clock
stored as (
    insert into brake (kind, name, reason, actor, at)
    select %(kind)s::text, %(name)s::text, %(reason)s::text, %(actor)s::text, c.now from clock c
    on conflict (kind, name) do update set reason = excluded.reason, actor = excluded.actor, at = excluded.at
),
logged as (
    insert into brake_act (act_id, act, kind, name, reason, actor, at)
    select %(act_id)s::uuid, 'set', %(kind)s::text, %(name)s::text, %(reason)s::text, %(actor)s::text, c.now from clock c
    on conflict do nothing
)
select 1 as none where false;

-- name: lift_brake
with
-- include: clock
gone as (
    delete from brake where kind = %(kind)s::text and name = %(name)s::text returning kind
),
logged as (
    insert into brake_act (act_id, act, kind, name, reason, actor, at)
    select %(act_id)s::uuid, 'lifted', %(kind)s::text, %(name)s::text, %(reason)s::text, %(actor)s::text, c.now
    from clock c where exists (select 1 from gone)
    on conflict do nothing
)
select exists (select 1 from gone) or exists (select 1 from brake_act where act_id = %(act_id)s::uuid) as lifted;

-- name: loosen
-- Runs that have work and were put off, of a scope, an agent or a queue, or of any; those that somebody is writing or taking
-- are left to their own time. Begun and queued ones apart, as their indexes are.
with
-- include: clock
begun as materialized (
    select h.rid from run_head h, clock c
    where h.sweep_at > c.now and h.sweep_at is not null and not h.ripe and h.status <> 'queued' and h.misses > 0
      and (%(scope)s::text is null or h.scope = %(scope)s::text)
      and (%(agent)s::text is null or h.agent = %(agent)s::text)
      and (%(queue)s::text is null or h.queue = %(queue)s::text)
    limit %(limit)s::bigint
    for no key update of h skip locked
),
queued as materialized (
    select h.rid from run_head h, clock c
    where h.sweep_at > c.now and h.sweep_at is not null and not h.ripe and h.status = 'queued' and h.misses > 0
      and (%(scope)s::text is null or h.scope = %(scope)s::text)
      and (%(agent)s::text is null or h.agent = %(agent)s::text)
      and (%(queue)s::text is null or h.queue = %(queue)s::text)
    limit %(limit)s::bigint
    for no key update of h skip locked
),
moved as (
    update run_head h set sweep_at = c.now, misses = 0
    from (select rid from begun union all select rid from queued) w, clock c
    where h.rid = w.rid
    returning h.rid
)
select count(*)::integer as count from moved;

-- name: brake_acts
select a.act, a.kind, a.name, a.reason, a.actor, floor(extract(epoch from a.at) * 1000)::bigint as at_ms
from brake_act a
order by a.at desc, a.act_id
limit %(limit)s::bigint;

-- name: set_rate
-- A full bucket; without any limit there is none. One that is shut stays so.
with
-- include: clock
gone as (
    delete from rate
    where kind = %(kind)s::text and scope = %(scope)s::text and name = %(name)s::text
      and %(calls)s::bigint is null and %(tokens)s::bigint is null and %(at_a_time)s::bigint is null
),
stored as (
    insert into rate (kind, scope, name, calls_per_minute, tokens_per_minute, at_a_time, calls_left, tokens_left, at)
    select %(kind)s::text, %(scope)s::text, %(name)s::text, %(calls)s::bigint, %(tokens)s::bigint, %(at_a_time)s::bigint,
           greatest(1, coalesce(%(calls)s::bigint, 0) * %(burst_ms)s::float8 / 60000),
           greatest(1, coalesce(%(tokens)s::bigint, 0) * %(burst_ms)s::float8 / 60000), c.now
    from clock c
    where %(calls)s::bigint is not null or %(tokens)s::bigint is not null or %(at_a_time)s::bigint is not null
    on conflict (kind, scope, name) do update set
        calls_per_minute = excluded.calls_per_minute, tokens_per_minute = excluded.tokens_per_minute,
        at_a_time = excluded.at_a_time,
        calls_left = excluded.calls_left, tokens_left = excluded.tokens_left, at = excluded.at
)
select 1 as none where false;

-- name: take_rate
-- All or nothing. Whoever waited for a row decides from what is in it now. The time is that of the statement's beginning, so it
-- may lie before that of the row.
with
-- include: clock
asked as materialized (
    select * from unnest(%(kinds)s::text[], %(scopes)s::text[], %(names)s::text[], %(calls)s::bigint[], %(tokens)s::bigint[])
        as a (kind, scope, name, calls, tokens)
),
locked as materialized (
    select r.kind, r.scope, r.name, r.calls_per_minute, r.tokens_per_minute, r.calls_left, r.tokens_left, r.at, r.shut_until,
           a.calls, a.tokens
    from rate r join asked a on a.kind = r.kind and a.scope = r.scope and a.name = r.name
    order by r.kind, r.scope, r.name
    for no key update of r
),
filled as materialized (
    select l.kind, l.scope, l.name, l.calls, l.tokens, l.calls_per_minute, l.tokens_per_minute, greatest(l.at, c.now) as at,
           greatest(1, coalesce(l.calls_per_minute, 0) * %(burst_ms)s::float8 / 60000) as calls_room,
           greatest(1, coalesce(l.tokens_per_minute, 0) * %(burst_ms)s::float8 / 60000) as tokens_room,
           l.calls_left + greatest(0, extract(epoch from c.now - l.at)::float8) * coalesce(l.calls_per_minute, 0) / 60 as calls_left,
           l.tokens_left + greatest(0, extract(epoch from c.now - l.at)::float8) * coalesce(l.tokens_per_minute, 0) / 60
               as tokens_left,
           greatest(0, coalesce(extract(epoch from l.shut_until - c.now)::float8 * 1000, 0)) as shut_ms
    from locked l, clock c
),
judged as materialized (
    select f.*,
           greatest(f.shut_ms,
                    case when f.calls_per_minute is null or f.calls = 0 then 0
                         else (least(f.calls, f.calls_room) - f.calls_left) * 60000 / f.calls_per_minute end,
                    case when f.tokens_per_minute is null or f.tokens = 0 then 0
                         else (least(f.tokens, f.tokens_room) - f.tokens_left) * 60000 / f.tokens_per_minute end) as wait_ms
    from filled f
),
verdict as (
    select greatest(0, ceil(coalesce(max(j.wait_ms), 0) - 0.001))::bigint as wait_ms from judged j
),
taken as (
    update rate r set
        calls_left  = least(j.calls_room, j.calls_left) - j.calls,
        tokens_left = least(j.tokens_room, j.tokens_left) - j.tokens,
        at          = j.at
    from judged j, verdict v
    where v.wait_ms = 0 and r.kind = j.kind and r.scope = j.scope and r.name = j.name
)
select wait_ms from verdict;

-- name: give_rate
with
asked as materialized (
    select * from unnest(%(kinds)s::text[], %(scopes)s::text[], %(names)s::text[]) as a (kind, scope, name)
),
locked as materialized (
    select r.kind, r.scope, r.name
    from rate r join asked a on a.kind = r.kind and a.scope = r.scope and a.name = r.name
    order by r.kind, r.scope, r.name
    for no key update of r
),
given as (
    update rate r set tokens_left = r.tokens_left + %(tokens)s::bigint
    from locked l where r.kind = l.kind and r.scope = l.scope and r.name = l.name
)
select 1 as none where false;

-- name: shut_rate
with
-- include: clock
asked as materialized (
    select * from unnest(%(kinds)s::text[], %(scopes)s::text[], %(names)s::text[]) as a (kind, scope, name)
),
locked as materialized (
    select r.kind, r.scope, r.name
    from rate r join asked a on a.kind = r.kind and a.scope = r.scope and a.name = r.name
    order by r.kind, r.scope, r.name
    for no key update of r
),
shut as (
    update rate r set shut_until = greatest(r.shut_until, c.now + %(wait_ms)s::float8 * interval '1 millisecond')
    from locked l, clock c where r.kind = l.kind and r.scope = l.scope and r.name = l.name
)
select 1 as none where false;

-- name: list_rates
select kind, scope, name, calls_per_minute, tokens_per_minute, at_a_time
from rate
where %(scope)s::text is null or scope in ('', %(scope)s::text)
order by kind, scope, name;

-- name: list_keys
select scope, key, slots, used, waiting
from concurrency
where %(scope)s::text is null or scope = %(scope)s::text
order by scope, key
limit %(limit)s::bigint;
