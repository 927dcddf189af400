-- Single runs: create, read, schedule, inputs of outsiders, listings.

-- name: create
-- The first run, unless its id or its key is taken; then its tasks, of which a clash fails the whole. In a caller's transaction
-- `now()` may be old, hence clock_timestamp().
with
clock as materialized (
    select coalesce(to_timestamp(%(now_ms)s::float8 / 1000), clock_timestamp()) as now
),
given as materialized (
    select r.*,
           coalesce(to_timestamp(r.start_at_ms / 1000), c.now + r.start_in_ms * interval '1 millisecond', c.now) as start_at,
           coalesce(to_timestamp(r.deadline_at_ms / 1000), c.now + r.deadline_in_ms * interval '1 millisecond') as deadline_at,
           coalesce(to_timestamp(r.before_at_ms / 1000), c.now + r.before_in_ms * interval '1 millisecond') as start_before_at
    from clock c,
         unnest(%(run_rid)s::uuid[], %(run_scope)s::text[], %(run_id)s::text[], %(run_kind)s::text[], %(run_agent)s::text[],
                %(run_body)s::text[], %(run_version)s::smallint[], %(run_queue)s::text[], %(run_priority)s::smallint[],
                %(run_shard)s::smallint[], %(run_last_seq)s::integer[], %(run_idem_key)s::text[], %(run_digest)s::text[],
                %(run_task_id)s::text[], %(run_start_in_ms)s::float8[], %(run_start_at_ms)s::float8[],
                %(run_deadline_in_ms)s::float8[], %(run_deadline_at_ms)s::float8[], %(run_start_before_in_ms)s::float8[],
                %(run_start_before_at_ms)s::float8[], %(run_slot_key)s::text[])
         with ordinality
         as r(rid, scope, run_id, kind, agent, body, version, queue, priority, shard, last_seq, idem_key, digest, task_id,
              start_in_ms, start_at_ms, deadline_in_ms, deadline_at_ms, before_in_ms, before_at_ms, slot_key, place)
),
heads as materialized (
    select g.place, g.rid, g.scope, g.run_id, g.kind, g.agent, g.queue, g.priority, g.shard,
           case when g.place > 1 then (select rid from given where place = 1) end as swarm_rid, g.task_id, g.idem_key,
           g.digest as input_digest, c.now as created_at, g.deadline_at, g.start_before_at, g.version, g.last_seq, g.body,
           c.now as status_at, d.due_at,
           case when d.due_at <= c.now then c.now + %(ring_in_ms)s::float8 * interval '1 millisecond' else d.due_at end as sweep_at,
           coalesce(d.due_at <= c.now and %(ring_in_ms)s::float8 = 0, false) as ripe, g.slot_key
    from clock c, given g,
         lateral (select least(case when g.place = 1 then g.start_at end, g.deadline_at, g.start_before_at) as due_at) d
),
first as (
    insert into run_head (
        rid, scope, run_id, kind, agent, queue, priority, shard, swarm_rid, task_id, idem_key, input_digest, created_at,
        deadline_at, start_before_at, version, last_seq, body, status_at, due_at, sweep_at, ripe, slot_key)
    select
        rid, scope, run_id, kind, agent, queue, priority, shard, swarm_rid, task_id, idem_key, input_digest, created_at,
        deadline_at, start_before_at, version, last_seq, body, status_at, due_at, sweep_at, ripe, slot_key
    from heads where place = 1
    on conflict do nothing
    returning rid
),
others as (
    insert into run_head (
        rid, scope, run_id, kind, agent, queue, priority, shard, swarm_rid, task_id, idem_key, input_digest, created_at,
        deadline_at, start_before_at, version, last_seq, body, status_at, due_at, sweep_at, slot_key)
    select
        h.rid, h.scope, h.run_id, h.kind, h.agent, h.queue, h.priority, h.shard, h.swarm_rid, h.task_id, h.idem_key, h.input_digest,
        h.created_at, h.deadline_at, h.start_before_at, h.version, h.last_seq, h.body, h.status_at, h.due_at, h.sweep_at,
        h.slot_key
    from first, heads h where h.place > 1
),
messages as (
    insert into message (rid, epoch, seq, body)
    select m.rid, 0, m.seq, m.body
    from first, unnest(%(message_rid)s::uuid[], %(message_seq)s::integer[], %(message_body)s::text[]) as m(rid, seq, body)
),
tags as (
    insert into run_tag (rid, key, value)
    select t.rid, t.key, t.value
    from first, unnest(%(tag_rid)s::uuid[], %(tag_key)s::text[], %(tag_value)s::text[]) as t(rid, key, value)
),
budgets as (
    insert into budget_scope (key, limit_tokens, limit_micros)
    select b.key, b.tokens, b.micros
    from first,
         unnest(%(budget_key)s::text[], %(budget_tokens)s::bigint[], %(budget_micros)s::bigint[]) as b(key, tokens, micros)
    on conflict do nothing
),
swarms as (
    insert into swarm (rid, slots, open, ready, total, max_tasks, max_depth, max_spawn)
    select f.rid, %(swarm_slots)s::integer, cardinality(%(task_id)s::text[]),
           (select count(*) from unnest(%(task_waiting)s::integer[]) as w(waiting) where w.waiting = 0),
           cardinality(%(task_id)s::text[]), %(swarm_max_tasks)s::integer, %(swarm_max_depth)s::integer,
           %(swarm_max_spawn)s::integer
    from first f
    where %(swarm_slots)s::integer is not null
),
tasks as (
    insert into swarm_task (swarm_rid, task_id, run_rid, status, waiting, rank, downstream, place, timeout_ms)
    select f.rid, t.task_id, t.run_rid, case when t.waiting = 0 then 'ready' else 'pending' end, t.waiting, t.rank, t.downstream,
           t.place - 1, t.timeout_ms
    from first f,
         unnest(%(task_rid)s::uuid[], %(task_id)s::text[], %(task_waiting)s::integer[], %(task_rank)s::bigint[],
                %(task_downstream)s::integer[], %(task_timeout_ms)s::bigint[])
         with ordinality as t(run_rid, task_id, waiting, rank, downstream, timeout_ms, place)
),
edges as (
    insert into swarm_edge (swarm_rid, up, down, soft)
    select f.rid, e.up, e.down, e.soft
    from first f,
         unnest(%(edge_up)s::text[], %(edge_down)s::text[], %(edge_soft)s::boolean[]) as e(up, down, soft)
)
select exists (select 1 from first) as created;

-- name: find_run
-- Who was there before. Its key goes before its id.
select h.rid, h.scope, h.run_id, h.status, h.input_digest
from run_head h
where h.run_id = %(run_id)s::text or (h.scope = %(scope)s::text and h.idem_key = %(idem_key)s::text)
order by (h.scope = %(scope)s::text and h.idem_key is not distinct from %(idem_key)s::text and h.idem_key is not null) desc
limit 1;

-- name: head
with
-- include: clock
run as (select * from run_head where run_id = %(run_id)s::text and scope = %(scope)s::text)
select
-- include: head_columns
from run h, clock c;

-- name: load
-- Head, history and unseen inputs of one snapshot. Three ranges of messages: the record of the newest compaction, what stands
-- before the gap that it made, and what stands behind it.
with
-- include: clock
run as materialized (
    select r.*,
           %(known_epoch)s::integer = r.epoch and %(known_compactions)s::integer = r.compactions as is_known,
           case when %(whole)s::boolean then 0 else r.folded_from end as gap_from,
           case when %(whole)s::boolean then 0 else r.folded_to end as gap_to
    from run_head r where r.run_id = %(run_id)s::text and r.scope = %(scope)s::text
)
select
-- include: head_columns
    ,
    m.message_seq, m.message_body,
    r.receipt_step, r.receipt_call, r.receipt_seq, r.receipt_stage, r.receipt_body,
    n.note_seq, n.note_kind, n.note_body,
    i.item_id, i.item_kind, i.item_body, i.item_digest, i.item_expires_in_ms, i.item_answer,
    i.item_votes, i.item_remind_in_ms, i.item_escalate_in_ms
from run h
cross join clock c
cross join lateral (
    select coalesce(array_agg(x.seq), '{}') as message_seq, coalesce(array_agg(x.body), '{}') as message_body
    from (select seq, body from message
          where rid = h.rid and epoch = h.epoch and seq = case when h.compactions > 0 and not h.is_known then -h.compactions end
          union all
          select seq, body from message
          where rid = h.rid and epoch = h.epoch
            and seq > case when h.is_known then %(known_seq)s::integer else -1 end and seq < h.gap_from
          union all
          select seq, body from message
          where rid = h.rid and epoch = h.epoch
            and seq > greatest(case when h.is_known then %(known_seq)s::integer else -1 end, h.gap_to - 1)
          order by seq) x
) m
cross join lateral (
    select coalesce(array_agg(x.step), '{}') as receipt_step, coalesce(array_agg(x.call_id), '{}') as receipt_call,
           coalesce(array_agg(x.seq), '{}') as receipt_seq, coalesce(array_agg(x.stage), '{}') as receipt_stage,
           coalesce(array_agg(x.body), '{}') as receipt_body
    from (select step, call_id, seq, stage, body from receipt
          where rid = h.rid
            and step >= case when %(whole)s::boolean then 0 else greatest(%(known_step)s::integer, h.folded_step) end
          order by step, call_id, seq) x
) r
cross join lateral (
    select coalesce(array_agg(x.seq), '{}') as note_seq, coalesce(array_agg(x.kind), '{}') as note_kind,
           coalesce(array_agg(x.body), '{}') as note_body
    from (select seq, kind, body from inbox where rid = h.rid and seq > h.seen_seq order by seq) x
) n
cross join lateral (
    select coalesce(array_agg(x.item_id), '{}') as item_id, coalesce(array_agg(x.item_kind), '{}') as item_kind,
           coalesce(array_agg(x.item_body), '{}') as item_body, coalesce(array_agg(x.item_digest), '{}') as item_digest,
           coalesce(array_agg(x.item_expires_in_ms), '{}') as item_expires_in_ms,
           coalesce(array_agg(x.item_answer), '{}') as item_answer, coalesce(array_agg(x.item_votes), '{}') as item_votes,
           coalesce(array_agg(x.item_remind_in_ms), '{}') as item_remind_in_ms,
           coalesce(array_agg(x.item_escalate_in_ms), '{}') as item_escalate_in_ms
    from (select
-- include: item_columns
          from pending_item p
          where p.rid = h.rid and h.suspension > 0 and p.suspension = h.suspension
          order by p.item_id) x
) i;

-- name: record_unclean_end
-- An unclean end of the holder of `expected`. A deadline still to come bounds the back-off; one that passed does not, so that
-- a run that kills its workers keeps its distance.
with
-- include: clock
ended as (
    update run_head h set
        attempts = h.attempts + 1,
        due_at   = case when h.parked is null then n.next_at end,
        sweep_at = case when h.parked is null then n.next_at end,
        ripe     = false
    from clock c, lateral (
        select least(c.now + %(back_off_ms)s::float8 * interval '1 millisecond',
                     (select d.deadline_at from run_head d where d.rid = %(rid)s::uuid and d.deadline_at > c.now),
                     (select d.until_at from run_head d where d.rid = %(rid)s::uuid and d.until_at > c.now)) as next_at
    ) n
    where h.rid = %(rid)s::uuid and h.revision = %(expected)s::bigint
    returning h.rid, h.attempts
),
kept as (
    insert into unclean_end (rid, number, at, evidence)
    select e.rid, e.attempts, c.now, %(evidence)s::text from ended e, clock c
    on conflict (rid, number) do update set at = excluded.at, evidence = excluded.evidence
)
select attempts from ended;

-- name: tags
select t.key, t.value from run_head h join run_tag t on t.rid = h.rid
where h.run_id = %(run_id)s::text and h.scope = %(scope)s::text;

-- name: unclean_ends
-- Those of the row of ends that goes on.
select e.number, floor(extract(epoch from e.at) * 1000)::bigint as at_ms, e.evidence
from run_head h join unclean_end e on e.rid = h.rid and e.number <= h.attempts
where h.run_id = %(run_id)s::text and h.scope = %(scope)s::text
order by e.number;

-- name: park
-- Head, task, swarm row, key: the order of locks. Refused when the revision moved or an input is unseen (`despite_notes`: a cancel).
-- With `as_revision` the head goes on from there, parked again or not, unless it is final; no commit of the old one is known.
with
-- include: clock
locked as materialized (
    select h.rid, h.swarm_rid, h.task_id, h.scope, h.slot_key, h.slot from run_head h
    where h.rid = %(rid)s::uuid and h.revision = %(expected)s::bigint
      and (h.wake_seq = h.seen_seq or (%(despite_notes)s::boolean and h.cancel_seq <= h.seen_seq))
      and (%(as_revision)s::bigint is null
           or (h.revision < %(as_revision)s::bigint and h.status not in ('completed', 'stopped', 'failed')))
    for no key update
),
task as materialized (
    select t.swarm_rid, t.task_id, t.status from swarm_task t
    where t.swarm_rid = (select swarm_rid from locked) and t.task_id = (select task_id from locked)
      and t.status in ('ready', 'running', 'suspended')
    for no key update
),
held as (
    update swarm_task t set status = 'needs_reconciliation'
    from task k
    where t.swarm_rid = k.swarm_rid and t.task_id = k.task_id
),
swarm_row as materialized (
    select s.rid, s.ready, s.running, s.journal_seq from swarm s
    where s.rid = (select swarm_rid from task)
    for no key update
),
counted as (                                -- from the locked row: see commit.sql
    update swarm s set
        running     = l.running - (k.status = 'running')::integer,
        ready       = l.ready - (k.status = 'ready')::integer,
        journal_seq = l.journal_seq + 1
    from swarm_row l, task k
    where s.rid = l.rid
),
told as (
    insert into swarm_event (swarm_rid, seq, type, task_id, detail, at)
    select l.rid, l.journal_seq + 1, 'task.needs_reconciliation', k.task_id, json_build_object('reason', %(reason)s::text)::text,
           coalesce(to_timestamp(%(now_ms)s::float8 / 1000), now())
    from swarm_row l, task k
),
key_row as materialized (
    select k.scope, k.key, k.used, k.waiting, l.slot
    from locked l join concurrency k on k.scope = l.scope and k.key = l.slot_key
    where l.slot is not null and (select count(*) from swarm_row) >= 0
    for no key update of k
),
returned as (
    update concurrency k set
        used    = l.used - (l.slot = 'held')::integer,
        waiting = l.waiting - (l.slot = 'waiting')::integer
    from key_row l
    where k.scope = l.scope and k.key = l.key
),
parked as (
    update run_head h set parked = %(reason)s::text, slot = null, due_at = null, sweep_at = null, ripe = false, until_at = null,
        revision  = coalesce(%(as_revision)s::bigint, h.revision),
        commit_id = case when %(as_revision)s::bigint is null then h.commit_id end
    from locked l
    where h.rid = l.rid
    returning h.rid
)
select rid from parked;

-- name: add_note
-- An outsider's input: its place is the number that it raises wake_seq to; envelope and revision stay as they are.
with
-- include: clock_and_ttl
locked as materialized (
    select h.rid, h.swarm_rid, h.task_id, h.parked, h.scope, h.run_id, h.queue, h.revision, h.priority, h.agent
    from run_head h
    where h.run_id = %(run_id)s::text and h.scope = %(scope)s::text
      and h.status not in ('completed', 'stopped', 'failed')
    for no key update
),
before as materialized (
    select n.seq from locked l join inbox n on n.rid = l.rid and n.note_id = %(note_id)s::uuid
),
task as materialized (
    select t.swarm_rid, t.task_id from swarm_task t
    where t.swarm_rid = (select swarm_rid from locked) and t.task_id = (select task_id from locked)
      and t.status = 'needs_reconciliation' and %(kind)s::text in ('retry', 'reconcile') and not exists (select 1 from before)
    for no key update
),
readied as (
    update swarm_task t set status = 'ready' from task k where t.swarm_rid = k.swarm_rid and t.task_id = k.task_id
    returning k.swarm_rid
),
counted as (
    update swarm s set ready = s.ready + 1 from readied k where s.rid = k.swarm_rid
),
own_swarm as materialized (                 -- of a swarm's own head, and its end is asked for
    select s.rid, s.journal_seq from swarm s
    where s.rid = (select rid from locked) and %(kind)s::text = 'cancel' and s.status = 'active' and not s.cancelling
      and not exists (select 1 from before)
    for no key update
),
cancelling as (
    update swarm s set cancelling = true, journal_seq = l.journal_seq + 1 from own_swarm l where s.rid = l.rid
),
told as (
    insert into swarm_event (swarm_rid, seq, type, at) select l.rid, l.journal_seq + 1, 'run.cancelled', c.now from own_swarm l, clock c
),
woken as (
    update run_head h set
        wake_seq   = h.wake_seq + 1,
        cancel_seq = case when %(kind)s::text = 'cancel' then h.wake_seq + 1 else h.cancel_seq end,
        due_at     = case when u.unparks then c.now else h.due_at end,
        sweep_at   = case when u.unparks or h.parked is null then least(h.sweep_at, c.later) end,
        parked     = case when not u.unparks then h.parked end,
        attempts   = case when u.unparks and %(kind)s::text = 'retry' then 0 else h.attempts end
    from locked l, clock c,
         lateral (select l.parked is not null and %(kind)s::text in ('retry', 'reconcile', 'cancel') as unparks) u
    where h.rid = l.rid and not exists (select 1 from before)
    returning h.rid, h.wake_seq
),
noted as (
    insert into inbox (rid, seq, kind, body, note_id)
    select w.rid, w.wake_seq, %(kind)s::text, %(body)s::text, %(note_id)s::uuid from woken w
)
select l.rid, coalesce((select seq from before), (select wake_seq from woken)) as seq,
       l.scope, l.run_id, l.queue, l.revision, l.priority, l.agent
from locked l;

-- name: answer_items
-- Answers and votes, all of the `required` ones or none; of the others, those whose item is open. Locks the head, then the items,
-- then the task (order of locks), and decides from the locked rows. `closed`: an item whose answer is given; a vote leaves it open.
-- The loser reads the winner with `item_answer`, which has a snapshot of its own.
with
-- include: clock_and_ttl
locked as materialized (
    select h.rid, h.suspension, h.open_items, h.parked, h.swarm_rid, h.task_id,
           h.scope, h.run_id, h.queue, h.revision, h.priority, h.agent
    from run_head h
    where h.run_id = %(run_id)s::text and h.scope = %(scope)s::text
    for no key update
),
items as materialized (
    select p.item_id, p.answer, p.votes, p.expires_at
    from pending_item p
    where p.rid = (select rid from locked) and p.suspension = (select suspension from locked where suspension > 0)
      and p.item_id = any (%(item_id)s::text[])
    order by p.item_id
    for no key update
),
given as materialized (
    select g.*, coalesce(i.answer is null and i.votes is not distinct from g.votes_before
                         and coalesce(i.expires_at <= c.now, false) = g.expired and i.item_id is not null, false) as fits
    from unnest(%(item_id)s::text[], %(answer)s::text[], %(votes)s::text[], %(votes_before)s::text[], %(required)s::boolean[],
                %(expired)s::boolean[]) as g(item_id, answer, votes, votes_before, required, expired)
    cross join clock c
    left join items i on i.item_id = g.item_id
),
answered as (
    update pending_item p set
        answer      = g.answer,
        votes       = g.votes,
        answer_id   = %(answer_id)s::uuid,
        answered_at = case when g.answer is not null then c.now end
    from given g, locked l, clock c
    where p.rid = l.rid and p.suspension = l.suspension and p.item_id = g.item_id and g.fits
      and not exists (select 1 from given x where x.required and not x.fits)
    returning p.answer is not null as closed
),
closing as materialized (
    select l.rid, a.closed, l.open_items = a.closed as last, l.parked is null as may_run
    from locked l, (select count(*) as stored, count(*) filter (where closed) as closed from answered) a
    where a.stored > 0
),
task as materialized (
    select t.swarm_rid, t.task_id from swarm_task t
    where t.swarm_rid = (select swarm_rid from locked) and t.task_id = (select task_id from locked)
      and t.status = 'suspended' and exists (select 1 from closing where last)
    for no key update
),
readied as (
    update swarm_task t set status = 'ready' from task k where t.swarm_rid = k.swarm_rid and t.task_id = k.task_id
    returning k.swarm_rid
),
counted as (
    update swarm s set ready = s.ready + 1 from readied k where s.rid = k.swarm_rid
),
lowered as (
    update run_head h set
        open_items = h.open_items - a.closed,
        due_at     = case when d.due then c.now else h.due_at end,
        sweep_at   = case when d.due and h.parked is null then least(h.sweep_at, c.later) else h.sweep_at end
    from closing a, clock c, lateral (select a.last and a.may_run and not exists (select 1 from readied) as due) d
    where h.rid = a.rid and a.closed > 0
    returning h.open_items, d.due
)
select exists (select 1 from closing) as stored, coalesce(w.open_items, l.open_items) as open_items,
       coalesce(w.due, false) as due, (select swarm_rid from readied) as swarm_rid,
       l.rid, l.scope, l.run_id, l.queue, l.revision, l.priority, l.agent
from locked l left join lowered w on true;

-- name: item_answer
-- Of the newest suspension that had it.
select answer, answer_id, votes from pending_item
where rid = %(rid)s::uuid and item_id = %(item_id)s::text
order by suspension desc
limit 1;

-- name: open_items
with
-- include: clock
run as (select rid, suspension from run_head where run_id = %(run_id)s::text and scope = %(scope)s::text)
select
-- include: item_columns
from run h
join pending_item p on p.rid = h.rid and p.suspension = h.suspension
cross join clock c
where h.suspension > 0 and p.answer is null
order by p.item_id;

-- name: bells
select scope, run_id, queue, revision, priority, agent
from run_head
where rid = any (%(rids)s::uuid[]) and status not in ('completed', 'stopped', 'failed');

-- name: sweep
-- Takes rows that nobody else is taking: first runs that have begun and whose doorbell was lost or whose time has come, oldest
-- first; then the ripe ones of every scope, by priority, fewest runs of the scope that run or were rung for, begun ones first,
-- age. A scope of which there are none gets one place although `limit` is used up, of `spare` such places. What has come due without having begun
-- and gets no place becomes ripe; from then on it costs a pass nothing until its turn comes. A row that has no work goes back to
-- its due_at. Limits are numbers wherever an index is to give the order: of a parameter the planner believes that it asks for a
-- tenth of the table, and sorts it all. A run whose steps ended unclean `suspicious` times in a row belongs to the quarantine queue of its queue, and is
-- never ripe. Scopes are looked through by shard from `from_shard` on, since of very many a pass sees some.
with recursive
-- include: clock_and_ttl
keys(queue, shard, scope, part) as (
    select f.queue, f.shard, f.scope, 0
    from unnest(%(queues)s::text[]) as n(queue) cross join lateral (
        select h.queue, h.shard, h.scope from run_head h
        where h.ripe and (h.queue, h.shard) >= (n.queue, %(from_shard)s::smallint)
        order by h.queue, h.shard, h.scope limit 1
    ) f
    where f.queue = n.queue
    union all
    select f.queue, f.shard, f.scope, 1
    from unnest(%(queues)s::text[]) as n(queue) cross join lateral (
        select h.queue, h.shard, h.scope from run_head h
        where h.ripe and h.queue >= n.queue
        order by h.queue, h.shard, h.scope limit 1
    ) f
    where f.queue = n.queue and f.shard < %(from_shard)s::smallint
    union all
    (select h.queue, h.shard, h.scope, 2 from run_head h
     where h.ripe and %(queues)s::text[] is null
     order by h.queue, h.shard, h.scope limit 1)
    union all
    select f.queue, f.shard, f.scope, k.part
    from keys k cross join lateral (
        select h.queue, h.shard, h.scope from run_head h
        where h.ripe and (h.queue, h.shard, h.scope) > (k.queue, k.shard, k.scope)
        order by h.queue, h.shard, h.scope limit 1
    ) f
    where k.part = 2 or (f.queue = k.queue and (k.part = 0 or f.shard < %(from_shard)s::smallint))
),
scopes as materialized (select queue, shard, scope from keys limit 256),
begun as materialized (
    select b.rid
    from (
        select h.rid
        from run_head h
        where h.sweep_at <= (select now from clock) and h.sweep_at is not null and not h.ripe and h.status <> 'queued'
          and (%(queues)s::text[] is null
               or h.queue || case when h.attempts >= %(suspicious)s::integer then %(suffix)s::text else '' end
                  = any (%(queues)s::text[]))
        order by h.sweep_at
        limit 1000
    ) b
    limit %(limit)s::bigint + %(spare)s::bigint
),
started as materialized (
    select h.rid, h.queue, h.shard, h.scope, h.priority, h.sweep_at, h.attempts >= %(suspicious)s::integer as alone,
           h.queue || case when h.attempts >= %(suspicious)s::integer then %(suffix)s::text else '' end as own_queue
    from run_head h
    where h.sweep_at <= (select now from clock) and h.sweep_at is not null and not h.ripe and h.status = 'queued'
    order by h.sweep_at
    limit 200
),
rung as materialized (                      -- doorbells that nobody has taken yet, as far as they are few
    select r.queue, r.scope, count(*) as count
    from (
        select h.queue, h.scope, h.due_at from run_head h
        where h.sweep_at > (select now from clock) and h.sweep_at <= (select later from clock)
          and h.sweep_at is not null and not h.ripe and h.status = 'queued'
        order by h.sweep_at
        limit 1000
    ) r
    where r.due_at <= (select now from clock)
    group by r.queue, r.scope
),
loads as materialized (                     -- how much of each scope runs, or was rung for
    select u.queue, u.shard, u.scope, coalesce(g.count, 0) + (
               select count(*) from (
                   select 1 from run_head r where r.queue = u.queue and r.scope = u.scope and r.status = 'running' limit 1000) x
           ) as running
    from (select queue, shard, scope from scopes
          union
          select queue, shard, scope from started) u
    left join rung g on g.queue = u.queue and g.scope = u.scope
),
waiting as materialized (
    select r.rid, l.queue, l.scope, l.running, r.priority, r.has_begun, r.sweep_at
    from loads l cross join lateral (
        select o.rid, o.priority, o.has_begun, o.sweep_at
        from (
            select h.rid, h.priority, h.status <> 'queued' as has_begun, h.sweep_at
            from run_head h
            where h.ripe and h.queue = l.queue and h.shard = l.shard and h.scope = l.scope
              and h.sweep_at <= (select now from clock)
            order by -h.priority, h.status = 'queued', h.sweep_at
            limit 1000
        ) o
        limit (select greatest(8, 2 * %(limit)s::bigint / greatest(1, count(*))) from scopes)
    ) r
    where %(queues)s::text[] is null or l.queue = any (%(queues)s::text[])
    union all
    select t.rid, t.queue, t.scope, l.running, t.priority, false, t.sweep_at
    from started t join loads l on l.queue = t.queue and l.scope = t.scope
    where not t.alone and (%(queues)s::text[] is null or t.queue = any (%(queues)s::text[]))
),
ranked as (
    select w.rid, w.priority, w.has_begun, w.sweep_at, w.running,
           row_number() over (partition by w.queue, w.scope order by w.priority desc, w.has_begun desc, w.sweep_at, w.rid) as nth
    from waiting w
),
placed as (
    select r.rid, r.running + r.nth = 1 as is_first,
           row_number() over (order by r.priority desc, r.running + r.nth, r.has_begun desc, r.sweep_at, r.rid) as place,
           row_number() over (partition by r.running + r.nth = 1 order by r.priority desc, r.sweep_at, r.rid) as first_place
    from ranked r
),
picked as materialized (
    select p.rid, p.place
    from placed p
    where p.place <= %(limit)s::bigint - (select count(*) from begun)
       or (p.is_first and p.first_place <= %(spare)s::bigint)
),
found as materialized (
    select rid, true as chosen, 0 as place from begun
    union all
    select rid, true, place from picked
    union all
    select t.rid, t.alone, 0
    from started t
    where case when t.alone then %(queues)s::text[] is null or t.own_queue = any (%(queues)s::text[])
               else t.rid not in (select rid from picked) end
),
taken as materialized (
    select h.rid, f.chosen, f.place,
           h.parked is null
           and (coalesce(h.due_at <= (select now from clock), false)
                or (h.wake_seq > h.seen_seq and (h.slot is distinct from 'waiting' or h.cancel_seq > h.seen_seq))) as has_work
    from found f join run_head h on h.rid = f.rid
    where h.sweep_at <= (select now from clock)
    for no key update of h skip locked
),
moved as (
    update run_head h set
        sweep_at = case when not t.has_work then case when h.parked is null then h.due_at end
                        when t.chosen then c.later
                        else h.sweep_at end,
        ripe     = t.has_work and not t.chosen and h.attempts < %(suspicious)s::integer
    from taken t, clock c
    where h.rid = t.rid
    returning h.scope, h.run_id, h.revision, h.priority, h.agent, t.chosen and t.has_work as rings, t.place,
              h.queue || case when h.attempts >= %(suspicious)s::integer then %(suffix)s::text else '' end as queue
)
select scope, run_id, queue, revision, priority, agent from moved where rings order by place;

-- name: ripen
-- Nobody rang for these, since their queue is full: the sweep may feed them at once. A suspicious one is never ripe, and found
-- all the same.
with
-- include: clock
locked as materialized (
    select h.rid from run_head h
    where (h.scope, h.run_id) in (select * from unnest(%(scope)s::text[], %(run_id)s::text[]))
      and h.sweep_at is not null
    order by h.rid
    for no key update
),
moved as (
    update run_head h set sweep_at = least(h.sweep_at, c.now), ripe = h.attempts < %(suspicious)s::integer
    from locked l, clock c
    where h.rid = l.rid
)
select 1 as none where false;

-- name: postpone
with
-- include: clock
moved as (
    update run_head h set sweep_at = c.now + %(in_ms)s::float8 * interval '1 millisecond', ripe = false
    from clock c
    where h.run_id = %(run_id)s::text and h.scope = %(scope)s::text and h.sweep_at is not null
)
select 1 as none where false;

-- name: put_off
-- Nobody here can run it: after `least_ms`, doubled with every such look in a row up to `most_ms`. A commit begins anew.
with
-- include: clock
moved as (
    update run_head h set
        sweep_at = c.now + least(%(most_ms)s::float8, %(least_ms)s::float8 * 2 ^ h.misses) * interval '1 millisecond',
        misses   = least(h.misses + 1, 30),
        ripe     = false
    from clock c
    where h.run_id = %(run_id)s::text and h.scope = %(scope)s::text and h.sweep_at is not null
)
select 1 as none where false;

-- name: hasten
-- Of rows that have work and were put off because nobody could run them; those that somebody is writing or taking are left to
-- their own time. Begun and queued ones apart, as their indexes are.
with
-- include: clock
begun as materialized (
    select h.rid from run_head h, clock c
    where h.sweep_at > c.now and h.sweep_at is not null and not h.ripe and h.status <> 'queued' and h.misses > 0
      and h.queue = any (%(queues)s::text[]) and h.agent = any (%(agents)s::text[])
    limit %(limit)s::bigint
    for no key update of h skip locked
),
queued as materialized (
    select h.rid from run_head h, clock c
    where h.sweep_at > c.now and h.sweep_at is not null and not h.ripe and h.status = 'queued' and h.misses > 0
      and h.queue = any (%(queues)s::text[]) and h.agent = any (%(agents)s::text[])
    limit %(limit)s::bigint
    for no key update of h skip locked
),
moved as (
    update run_head h set sweep_at = c.now, misses = 0
    from (select rid from begun union all select rid from queued) w, clock c
    where h.rid = w.rid and h.parked is null and (coalesce(h.due_at <= c.now, false) or h.wake_seq > h.seen_seq)
    returning h.rid
)
select count(*)::integer as count from moved;

-- name: journal
select j.seq, j.body, floor(extract(epoch from j.at) * 1000)::bigint as at_ms
from run_head h join journal j on j.rid = h.rid
where h.run_id = %(run_id)s::text and h.scope = %(scope)s::text and j.seq > %(after)s::bigint
order by j.seq
limit %(limit)s::bigint;

-- name: list_runs
-- A parked run is listed as suspended. The cursor is the (status_at, rid) of the last row, in microseconds as they are stored.
with
-- include: clock
run as not materialized (select * from run_head)
select
-- include: head_columns
    ,
    (extract(epoch from h.status_at) * 1000000)::bigint as status_at_us
from run h, clock c
where (%(scope)s::text is null or h.scope = %(scope)s::text)
  and (cardinality(%(status)s::text[]) = 0
       or (case when h.parked is not null and h.status in ('queued', 'running') then 'suspended' else h.status end)
          = any (%(status)s::text[]))
  and h.kind = any (%(kind)s::text[])
  and (%(agent)s::text is null or h.agent = %(agent)s::text)
  and (%(queue)s::text is null or h.queue = %(queue)s::text)
  and (%(parked)s::boolean is null or (h.parked is not null) = %(parked)s::boolean)
  and not exists (select 1 from unnest(%(tag_key)s::text[], %(tag_value)s::text[]) as q(key, value)
                  where not exists (select 1 from run_tag t where t.rid = h.rid and t.key = q.key and t.value = q.value))
  and (%(before_us)s::bigint is null
       or (h.status_at, h.rid)
          < (timestamptz 'epoch' + %(before_us)s::bigint * interval '1 microsecond', %(before_rid)s::uuid))
order by h.status_at desc, h.rid desc
limit %(limit)s::bigint;

-- name: cost_by_tag
select t.value, count(*) as runs, sum(h.tokens)::bigint as tokens,
       case when bool_and(h.cost_micros is not null) then sum(h.cost_micros)::bigint end as cost_micros
from run_tag t join run_head h on h.rid = t.rid
where t.key = %(tag_key)s::text and (%(scope)s::text is null or h.scope = %(scope)s::text)
group by t.value
order by t.value;

-- name: now
select floor(extract(epoch from coalesce(to_timestamp(%(now_ms)s::float8 / 1000), clock_timestamp())) * 1000)::bigint as now_ms;
