-- Slots of concurrency keys. Every change of `slot` of a head moves the counters of its key in the same statement; the head is
-- locked first, the key after tasks and swarm, before budget scopes. Given back by `commit` and `park`.

-- name: take_slot
-- For a run that is about to run. `again`: the row of its key was made just now, which this statement does not see yet. Whoever
-- asks while others wait, waits too; the order among them is that of `fill_key`. Whoever waits is swept for its end alone, which
-- a cancel that it has not seen is: the sweep that the note brought near still comes.
with
-- include: clock
locked as materialized (
    select h.rid, h.scope, h.slot_key, h.slot, h.cancel_seq > h.seen_seq as is_cancelled,
           least(h.deadline_at, h.until_at, case when h.status = 'queued' then h.start_before_at end) as ends_at
    from run_head h
    where h.rid = %(rid)s::uuid and h.revision = %(expected)s::bigint and h.parked is null and h.slot_key is not null
    for no key update
),
made as (
    insert into concurrency (scope, key, slots)
    select l.scope, l.slot_key, %(slots)s::integer from locked l where l.slot is null
    on conflict do nothing
    returning scope
),
key_row as materialized (
    select c.scope, c.key, c.used, c.waiting, c.used < c.slots and c.waiting = 0 as granted
    from concurrency c
    where (c.scope, c.key) = (select l.scope, l.slot_key from locked l where l.slot is null)
      and (select count(*) from made) >= 0
    for no key update
),
counted as (
    update concurrency c set used = k.used + k.granted::integer, waiting = k.waiting + (not k.granted)::integer
    from key_row k
    where c.scope = k.scope and c.key = k.key
),
moved as (
    update run_head h set
        slot     = case when k.granted then 'held' else 'waiting' end,
        due_at   = case when k.granted then h.due_at else l.ends_at end,
        sweep_at = case when k.granted then h.sweep_at
                        when l.is_cancelled then least(h.sweep_at, l.ends_at)
                        else l.ends_at end,
        ripe     = h.ripe and (k.granted or l.is_cancelled)
    from locked l, key_row k
    where h.rid = l.rid
    returning h.slot
)
select coalesce((select slot from moved), l.slot, 'again') as slot from locked l;

-- name: fill_key
-- A statement of its own after a slot came free, with a snapshot of its own. It takes the key first and never waits afterwards.
with
-- include: clock_and_ttl
key_row as materialized (
    select scope, key, used, waiting, slots - used as free from concurrency
    where scope = %(scope)s::text and key = %(key)s::text and waiting > 0 and used < slots
    for no key update
),
pick as materialized (
    select h.rid
    from run_head h
    where h.scope = (select scope from key_row) and h.slot_key = (select key from key_row) and h.slot = 'waiting'
    order by -h.priority, h.created_at
    limit (select free from key_row)
    for no key update skip locked
),
due as (
    update run_head h set
        slot     = 'held',
        due_at   = case when h.parked is null then c.now end,
        sweep_at = case when h.parked is null then c.later end,
        ripe     = false
    from pick p, clock c
    where h.rid = p.rid
    returning h.scope, h.run_id, h.queue, h.revision, h.priority, h.agent
),
counted as (
    update concurrency c set
        used    = k.used + (select count(*) from due),
        waiting = k.waiting - (select count(*) from due)
    from key_row k
    where c.scope = k.scope and c.key = k.key and exists (select 1 from due)
)
select scope, run_id, queue, revision, priority, agent from due;

-- name: set_slots
with
stored as (
    insert into concurrency (scope, key, slots) values (%(scope)s::text, %(key)s::text, %(slots)s::integer)
    on conflict (scope, key) do update set slots = excluded.slots
)
select 1 as none where false;

-- name: slot_counters
select slots, used, waiting from concurrency where scope = %(scope)s::text and key = %(key)s::text;

-- name: keys_needing_attention
-- What a death between a slot that came free and its second statement leaves.
select scope, key from concurrency where waiting > 0 and used < slots order by scope, key limit %(limit)s::bigint;
