-- The commit of a run's holder, in four sizes. Each is one statement: first it locks, in the order of locks (heads by id, items,
-- tasks by id, swarm row, key, budget scopes deepest first), then one `gate` decides from columns of the locked rows, then all that
-- writes refers to the gate. Why so: after a row-lock wait Postgres re-reads the locked row and nothing else, every sub-query
-- still answers from the snapshot taken before the wait; and CTEs without a reference to each other run in no defined order.
-- Counters are computed from the locked row, not from the row that the update finds: that one may be older, and its constraints
-- are checked with the older numbers before the update meets the newest version (a slot given back that it never gave).
-- A CTE is read only as far as its rows are asked for, and what is not read is not locked: `exists` stops at the first row, so
-- whoever locks after another CTE counts it.
--
-- Rules of all of them
--  1. Refused as `conflict` unless the stored revision is `expected` and nobody has parked the run since; as `cancel_pending` if
--     it `yields` (suspends, ends, or starts an effect) while a cancel is unseen (cancel_seq > seen_seq), or `hears` (completes
--     a run that goes on when somebody writes to it, or creates runs that may do what it may) while any input is.
--  2. New items belong to a new suspension, named by the new revision. A run that stays suspended carries the answers of items of
--     the same id over; without new items it keeps its suspension. Any other has none.
--  3. due_at is what the change asks for, never later than the deadline (nor, while queued, than start_before); it is now when
--     an input is unseen (wake_seq > seen_seq) or when the run is suspended on items that are all answered.
--  4. A final status takes unseen notes as seen, and its due_at as it is asked for (work after the end).
--  5. sweep_at is due_at where that is later than now or null. For a run due at once it stays where it is between half a TTL and a
--     TTL away, so that no index is touched (HOT), else it goes a TTL on. Whoever commits rings, so the run is not ripe.
--  6. status_at moves with status only; `progress` sets attempts to 0.
--  7. Wakes: every named head that is not final gets a `child` note and sweep_at at most a TTL away.
--  8. Task: one that ended stays as it is. Otherwise it takes the new status; an old `running` gives its slot back, an old `ready`
--     leaves the ready ones, an end lowers `open`, `completed` lowers `waiting` of its dependents and any other end that of those
--     that only wait for an end; a pending one with none left becomes ready. `again` if the locked row counts more dependents than
--     this statement sees.
--  9. A final status of a swarm's own head settles the swarm. Changes of a task's status and the end are events of the swarm,
--     numbered under the lock of its row.
-- 10. A status that suspends or ends gives the slot of its concurrency key back; such a commit is always the largest.
-- 11. Reserve: see ledger.sql.
-- 12. Children are created queued and due at once, under scope, queue, priority, shard and deadline of the row; whoever commits rings.
-- 13. A delegated run that ends answers the item of its parent, if that is open in the parent's current suspension. The last open
--     item makes the parent due, or its task ready where it is one.
-- 14. Tasks that an ending task creates wait for what has not ended as they need it. `too_many` if the swarm has no room for them.

-- part: own_head
locked as materialized (
    select h.rid, h.revision, h.commit_id, h.status, h.wake_seq, h.cancel_seq, h.seen_seq, h.parked, h.due_at, h.open_items,
           h.suspension, h.deadline_at, h.start_before_at, h.until_at
    from run_head h
    where h.rid = %(rid)s::uuid
    for no key update
),

-- part: fence
fenced as materialized (
    select l.*
    from locked l
    where l.rid = %(rid)s::uuid
      and l.revision = %(expected)s::bigint
      and l.parked is null
      and not (%(yields)s::boolean and l.cancel_seq > %(seen_seq)s::bigint)
      and not (%(hears)s::boolean and l.wake_seq > %(seen_seq)s::bigint)
),

-- part: gate
-- Every commit has before this: `admitted`, the fenced head if nothing speaks against the commit, and `listed`, how many items the
-- change gives and how many of them are answered.
gate as materialized (
    select s.*,
           case when s.final then s.asked_at
                when s.wake_seq > %(seen_seq)s::bigint
                     or (%(status)s::text = 'suspended' and s.new_suspension > 0 and s.new_open_items = 0) then c.now
                else least(s.asked_at, s.deadline_at, case when %(status)s::text = 'queued' then s.start_before_at end,
                           case when %(status)s::text in ('queued', 'running') then s.until_at end)
           end as new_due_at
    from clock c, (
        select a.rid, a.wake_seq, a.deadline_at, a.start_before_at, a.until_at,
               %(status)s::text in ('completed', 'stopped', 'failed') as final,
               t.now + %(due_in_ms)s::float8 * interval '1 millisecond' as asked_at,
               case when i.given > 0 then i.given - i.answered
                    when a.status = 'suspended' and %(status)s::text = 'suspended' then a.open_items
                    else 0 end as new_open_items,
               case when i.given > 0 then a.revision + 1
                    when a.status = 'suspended' and %(status)s::text = 'suspended' then a.suspension
                    else 0 end as new_suspension
        from admitted a, listed i, clock t
    ) s
),

-- part: own
own as (
    update run_head h set
        revision    = h.revision + 1,
        commit_id   = %(commit_id)s::uuid,
        version     = %(version)s::smallint,
        status      = %(status)s::text,
        phase       = %(phase)s::text,
        epoch       = %(epoch)s::integer,
        last_seq    = %(last_seq)s::integer,
        journal_seq = %(journal_seq)s::bigint + cardinality(%(journal_body)s::text[]),
        seen_seq    = case when g.final then h.wake_seq else %(seen_seq)s::bigint end,
        suspension  = g.new_suspension,
        mid_step    = %(mid_step)s::boolean,
        tokens      = %(tokens)s::bigint,
        cost_micros = %(cost_micros)s::bigint,
        model_step  = %(model_step)s::integer,
        compactions = %(compactions)s::integer,
        folded_from = %(folded_from)s::integer,
        folded_to   = %(folded_to)s::integer,
        folded_step = %(folded_step)s::integer,
        body        = %(body)s::text,
        until_at    = case when %(status)s::text in ('queued', 'running') then h.until_at end,
        status_at   = case when h.status = %(status)s::text then h.status_at else c.now end,
        due_at      = g.new_due_at,
        sweep_at    = case when g.new_due_at > c.now then g.new_due_at
                           when g.new_due_at is null then null
                           when h.sweep_at between c.half_way and c.later then h.sweep_at
                           else c.later end,
        ripe        = false,
        misses      = 0,
        slot        = case when %(status)s::text not in ('queued', 'running') then null else h.slot end,
        open_items  = g.new_open_items,
        attempts    = case when %(progress)s::boolean then 0 else h.attempts end
    from gate g, clock c
    where h.rid = g.rid
    returning h.rid, h.revision, h.wake_seq, h.seen_seq, h.cancel_seq, h.due_at
),
messages as (
    insert into message (rid, epoch, seq, body)
    select o.rid, %(epoch)s::integer, m.seq, m.body
    from own o, unnest(%(message_seq)s::integer[], %(message_body)s::text[]) as m(seq, body)
),
receipts as (
    insert into receipt (rid, step, call_id, seq, stage, body)
    select o.rid, r.step, r.call_id, r.seq, r.stage, r.body
    from own o,
         unnest(%(receipt_step)s::integer[], %(receipt_call)s::text[], %(receipt_seq)s::integer[], %(receipt_stage)s::text[],
                %(receipt_body)s::text[]) as r(step, call_id, seq, stage, body)
),
events as (
    insert into journal (rid, seq, body, at)
    select o.rid, %(journal_seq)s::bigint + e.place, e.body, c.now
    from own o, clock c, unnest(%(journal_body)s::text[]) with ordinality as e(body, place)
)

-- part: state_columns
    coalesce(o.revision, l.revision)        as revision,
    l.commit_id                             as stored_commit_id,     -- equals mine: an earlier try was applied
    coalesce(o.wake_seq, l.wake_seq)        as wake_seq,
    coalesce(o.cancel_seq, l.cancel_seq)    as cancel_seq,
    case when o.rid is not null then coalesce(o.due_at <= c.now, false) or o.wake_seq > o.seen_seq
         else l.parked is null and (coalesce(l.due_at <= c.now, false) or l.wake_seq > l.seen_seq) end as due

-- name: commit_plain
-- Without wakes, items, swarm task and ledger, and not final: most commits of a run at work.
with
-- include: clock_and_ttl
-- include: own_head
-- include: fence
admitted as (select * from fenced),
listed as (select 0 as given, 0 as answered),
-- include: gate
-- include: own
select
    case when o.rid is not null then 'applied'
         when l.rid is null then 'missing'
         when l.revision <> %(expected)s::bigint or l.parked is not null then 'conflict'
         else 'cancel_pending' end as outcome,
-- include: state_columns
from clock c
left join locked l on l.rid = %(rid)s::uuid
left join own o on true;

-- name: commit_settle
-- The plain one with settlements: the reply of every call that was reserved.
with
-- include: clock_and_ttl
-- include: own_head
-- include: fence
may as (select * from fenced),
-- include: ending
admitted as (select * from fenced),
listed as (select 0 as given, 0 as answered),
-- include: gate
-- include: settled_alone
-- include: own
select
    case when o.rid is not null then 'applied'
         when l.rid is null then 'missing'
         when l.revision <> %(expected)s::bigint or l.parked is not null then 'conflict'
         else 'cancel_pending' end as outcome,
-- include: state_columns
from clock c
left join locked l on l.rid = %(rid)s::uuid
left join own o on true;

-- name: commit_reserve
-- The plain one with reservation and settlements.
with
-- include: clock_and_ttl
-- include: own_head
-- include: fence
may as (select * from fenced),
-- include: ending
-- include: ledger
admitted as materialized (select * from may where not exists (select 1 from refused)),
listed as (select 0 as given, 0 as answered),
-- include: gate
-- include: ledger_writes
-- include: own
select
    case when o.rid is not null then 'applied'
         when l.rid is null then 'missing'
         when l.revision <> %(expected)s::bigint or l.parked is not null then 'conflict'
         when exists (select 1 from refused) then 'over_budget'
         else 'cancel_pending' end as outcome,
-- include: state_columns
    ,
    (select key from refused) as refused_scope,
    (select reason from refused) as refused_reason,
    (select json_agg(json_build_array(key, used_tokens, used_micros, limit_tokens, limit_micros, warn_percent) order by depth)
     from standing where warn_percent is not null and (select is_new from asked)) as charged
from clock c
left join locked l on l.rid = %(rid)s::uuid
left join own o on true;

-- name: commit
-- Everything: also wakes, items, the swarm task and the end.
with
-- include: clock_and_ttl
locked as materialized (
    select h.rid, h.revision, h.commit_id, h.status, h.wake_seq, h.cancel_seq, h.seen_seq, h.parked, h.due_at, h.open_items,
           h.suspension, h.deadline_at, h.start_before_at, h.until_at, h.scope, h.slot_key, h.slot, h.queue, h.priority, h.shard,
           h.swarm_rid, h.task_id
    from run_head h
    where h.rid = any (array_append(array_append(%(wakes)s::uuid[], %(rid)s::uuid), %(parent_rid)s::uuid))
    order by h.rid
    for no key update
),
-- include: fence
before as materialized (                    -- items of the suspension that goes on, with the answers of now
    select p.item_id, p.answer, p.answer_id, p.answered_at, p.votes
    from pending_item p
    where p.rid = %(rid)s::uuid and p.suspension = (select suspension from fenced where status = 'suspended')
      and p.item_id = any (%(item_id)s::text[])
      and (select count(*) from locked) > 0   -- after all of the heads
    order by p.item_id
    for no key update
),
listed as materialized (
    select cardinality(%(item_id)s::text[]) as given, (select count(*) from before where answer is not null) as answered
),
parent as materialized (                    -- of a delegated run: the item that waits for it, and who would go on
    select l.rid, l.suspension, l.open_items, l.parked, l.swarm_rid, l.task_id, i.item_id
    from locked l join pending_item i on i.rid = l.rid and i.suspension = l.suspension
    where l.rid = %(parent_rid)s::uuid and l.status = 'suspended' and i.item_id = %(parent_item)s::text
      and i.kind = 'child_run' and i.answer is null
      and (select given from listed) >= 0   -- after the own items
      and exists (select 1 from fenced)
    for no key update of i
),
parent_task as materialized (
    select t.swarm_rid, t.task_id
    from parent p join swarm_task t on t.swarm_rid = p.swarm_rid and t.task_id = p.task_id
    where t.status = 'suspended' and p.open_items = 1
    for no key update of t
),
edges as materialized (                     -- of the own task; `frees`: its end is what they wait for
    select e.down, e.soft or %(task_status)s::text = 'completed' as frees
    from swarm_edge e
    where e.swarm_rid = %(swarm_rid)s::uuid and e.up = %(task_id)s::text
      and %(task_status)s::text in ('completed', 'failed', 'cancelled')
),
tasks as materialized (                     -- own task, the dependents that it frees, and what new tasks wait for
    select t.task_id, t.status, t.downstream
    from swarm_task t
    where t.swarm_rid = %(swarm_rid)s::uuid
      and t.task_id = any (array(select down from edges where frees) || %(spawn_up)s::text[] || %(task_id)s::text)
      and (select count(*) from parent_task) >= 0   -- after the items
      and (select count(*) from locked) > 0         -- and all of the heads
      and exists (select 1 from fenced)
    order by t.task_id
    for no key update
),
turn as materialized (                      -- what becomes of the own task; no row if it ended before
    select t.status as old_status, t.downstream,
           %(task_status)s::text in ('completed', 'failed', 'cancelled') as ends
    from tasks t
    where t.task_id = %(task_id)s::text and t.status not in ('completed', 'failed', 'blocked', 'cancelled')
),
swarm_row as materialized (
    select s.rid, s.open, s.ready, s.running, s.total, s.max_tasks, s.journal_seq, s.status from swarm s
    where s.rid = any (array[case when (select count(*) from turn) > 0 then %(swarm_rid)s::uuid end,   -- after all of the tasks
                             (select swarm_rid from parent_task),
                             case when %(status)s::text in ('completed', 'stopped', 'failed') then %(rid)s::uuid end])
    order by s.rid
    for no key update
),
crowded as materialized (                   -- the new tasks are more than the swarm may have
    select 1 from swarm_row l
    where l.rid = %(swarm_rid)s::uuid and cardinality(%(spawn_task)s::text[]) > 0
      and coalesce(l.total + cardinality(%(spawn_task)s::text[]) > l.max_tasks, true)
),
key_row as materialized (                    -- of the slot that is given back
    select k.scope, k.key, k.used, k.waiting, f.slot
    from fenced f join concurrency k on k.scope = f.scope and k.key = f.slot_key
    where f.slot is not null and %(status)s::text not in ('queued', 'running')
      and (select count(*) from swarm_row) >= 0   -- after the swarm row
    for no key update of k
),
may as materialized (
    select f.*
    from fenced f
    where (select count(*) from swarm_row) + (select count(*) from key_row) >= 0   -- swarm row and key before the scopes
      and (select count(*) from parent) >= 0
      and (not exists (select 1 from turn where ends) or (select count(*) from edges) = (select downstream from turn))
      and not exists (select 1 from crowded)
),
-- include: ending
-- include: ledger
admitted as materialized (select * from may where not exists (select 1 from refused)),
-- include: gate
-- include: ledger_writes
-- include: own
,
woken as (
    update run_head h set
        wake_seq = h.wake_seq + 1,
        sweep_at = case when h.parked is null then least(h.sweep_at, c.later) end
    from locked l, clock c
    where h.rid = l.rid and h.rid = any (%(wakes)s::uuid[]) and l.status not in ('completed', 'stopped', 'failed')
      and exists (select 1 from own)
    returning h.rid, h.wake_seq, h.scope, h.run_id, h.queue, h.revision, h.priority, h.agent
),
noted as (
    insert into inbox (rid, seq, kind, body) select w.rid, w.wake_seq, 'child', %(note_body)s::text from woken w
),
items as (
    insert into pending_item (rid, suspension, item_id, kind, body, digest, expires_at, remind_at, escalate_at,
                              answer, answer_id, answered_at, votes)
    select o.rid, o.revision, i.item_id, i.kind, i.body, i.digest, c.now + i.expires_in_ms * interval '1 millisecond',
           c.now + i.remind_in_ms * interval '1 millisecond', c.now + i.escalate_in_ms * interval '1 millisecond',
           b.answer, b.answer_id, b.answered_at, b.votes
    from own o
    cross join clock c
    cross join unnest(%(item_id)s::text[], %(item_kind)s::text[], %(item_body)s::text[], %(item_digest)s::text[],
                %(item_expires_in_ms)s::float8[], %(item_remind_in_ms)s::float8[], %(item_escalate_in_ms)s::float8[])
        as i(item_id, kind, body, digest, expires_in_ms, remind_in_ms, escalate_in_ms)
    left join before b on b.item_id = i.item_id
),
waits as materialized (                     -- of each new task: what has not ended as it needs it
    select e.down, count(*) as waiting
    from turn n cross join unnest(%(spawn_up)s::text[], %(spawn_down)s::text[], %(spawn_soft)s::boolean[]) as e(up, down, soft)
    left join tasks k on k.task_id = e.up
    where case when k.task_id is null then true     -- another new one
               when k.task_id = %(task_id)s::text then not (e.soft or %(task_status)s::text = 'completed')
               else not (k.status = 'completed' or (e.soft and k.status in ('failed', 'blocked', 'cancelled'))) end
    group by e.down
),
added as materialized (
    select a.*, coalesce(w.waiting, 0) as waiting
    from own o cross join turn n
    cross join unnest(%(spawn_rid)s::uuid[], %(spawn_run_id)s::text[], %(spawn_task)s::text[], %(spawn_kind)s::text[],
                      %(spawn_agent)s::text[], %(spawn_body)s::text[], %(spawn_last_seq)s::integer[], %(spawn_queue)s::text[],
                      %(spawn_slot_key)s::text[], %(spawn_rank)s::bigint[], %(spawn_depth)s::integer[],
                      %(spawn_timeout_ms)s::bigint[])
        with ordinality as a(rid, run_id, task_id, kind, agent, body, last_seq, queue, slot_key, rank, depth, timeout_ms, place)
    left join waits w on w.down = a.task_id
),
added_heads as (
    insert into run_head (rid, scope, run_id, kind, agent, queue, priority, shard, swarm_rid, task_id, input_digest, created_at,
                          deadline_at, version, last_seq, body, status_at, due_at, sweep_at, slot_key)
    select a.rid, l.scope, a.run_id, a.kind, a.agent, a.queue, l.priority, l.shard, l.swarm_rid, a.task_id, '', c.now,
           l.deadline_at, 1, a.last_seq, a.body, c.now, l.deadline_at, l.deadline_at, a.slot_key
    from added a cross join clock c join locked l on l.rid = %(rid)s::uuid
),
added_tags as (
    insert into run_tag (rid, key, value) select a.rid, t.key, t.value from added a join run_tag t on t.rid = %(rid)s::uuid
),
added_tasks as (
    insert into swarm_task (swarm_rid, task_id, run_rid, status, waiting, rank, downstream, place, depth, timeout_ms)
    select l.rid, a.task_id, a.rid, case when a.waiting = 0 then 'ready' else 'pending' end, a.waiting, a.rank,
           coalesce(m.more, 0), l.total + a.place - 1, a.depth, a.timeout_ms
    from added a
    join swarm_row l on l.rid = %(swarm_rid)s::uuid
    left join (select u.up, count(*) as more from unnest(%(spawn_up)s::text[]) as u(up) group by u.up) m on m.up = a.task_id
),
added_edges as (
    insert into swarm_edge (swarm_rid, up, down, soft)
    select %(swarm_rid)s::uuid, e.up, e.down, e.soft
    from unnest(%(spawn_up)s::text[], %(spawn_down)s::text[], %(spawn_soft)s::boolean[]) as e(up, down, soft)
    where exists (select 1 from added)
),
moved as (                                  -- one update over own task, dependents and others: no row is changed twice
    update swarm_task t set
        status     = case when k.is_own then %(task_status)s::text
                          when k.frees and t.status = 'pending' and t.waiting = 1 then 'ready'
                          else t.status end,
        waiting    = t.waiting - k.frees::integer,
        downstream = t.downstream + k.more,
        ended_at   = case when k.is_own and n.ends then c.now else t.ended_at end
    from turn n, own o, clock c,
         (select x.task_id, x.status as old_status, x.task_id = %(task_id)s::text as is_own, coalesce(e.frees, false) as frees,
                 coalesce(m.more, 0)::integer as more
          from tasks x
          left join edges e on e.down = x.task_id
          left join (select u.up, count(*) as more from unnest(%(spawn_up)s::text[]) as u(up) group by u.up) m on m.up = x.task_id
         ) k
    where t.swarm_rid = %(swarm_rid)s::uuid and t.task_id = k.task_id
    returning t.task_id, t.status, k.old_status
),
news as materialized (                      -- what the journal of the swarm gets
    select 0 as place, 'task.' || %(task_status)s::text as type, %(task_id)s::text as task_id, null as detail
    from turn n, own o where n.old_status <> %(task_status)s::text
    union all
    select a.place, 'task.spawned', a.task_id, json_build_object('parent', %(task_id)s::text)::text from added a
),
events_of_swarm as (
    insert into swarm_event (swarm_rid, seq, type, task_id, detail, at)
    select l.rid, l.journal_seq + row_number() over (order by w.place), w.type, w.task_id, w.detail, c.now
    from news w cross join clock c join swarm_row l on l.rid = %(swarm_rid)s::uuid
),
counted as (
    update swarm s set
        open        = l.open - n.ends::integer + (select count(*) from added),
        running     = l.running - (n.old_status = 'running')::integer,
        ready       = l.ready - (n.old_status = 'ready')::integer
                      + (select count(*) from moved m where m.old_status = 'pending' and m.status = 'ready')
                      + (select count(*) from added where waiting = 0),
        total       = l.total + (select count(*) from added),
        journal_seq = l.journal_seq + (select count(*) from news)
    from swarm_row l, turn n, own o
    where s.rid = l.rid and l.rid = %(swarm_rid)s::uuid
    returning s.open, s.running = 0 and (s.ready = 0 or s.draining) as still
),
told as (
    update pending_item i set answer = %(parent_answer)s::text, answer_id = %(commit_id)s::uuid, answered_at = c.now
    from parent p, own o, clock c
    where i.rid = p.rid and i.suspension = p.suspension and i.item_id = p.item_id
    returning i.rid
),
readied as (
    update swarm_task t set status = 'ready'
    from parent_task k, own o
    where t.swarm_rid = k.swarm_rid and t.task_id = k.task_id
    returning t.swarm_rid
),
readied_count as (
    update swarm s set ready = l.ready + 1 from swarm_row l, readied k where s.rid = l.rid and l.rid = k.swarm_rid
),
parent_head as (
    update run_head h set
        open_items = p.open_items - 1,
        due_at     = case when d.due then c.now else h.due_at end,
        sweep_at   = case when d.due then least(h.sweep_at, c.later) else h.sweep_at end
    from told t, parent p, clock c,
         lateral (select p.open_items = 1 and p.parked is null and not exists (select 1 from readied) as due) d
    where h.rid = t.rid and p.rid = t.rid
    returning h.scope, h.run_id, h.queue, h.revision, h.priority, h.agent, d.due
),
children as (
    insert into run_head (rid, scope, run_id, kind, agent, queue, priority, shard, input_digest, created_at, deadline_at, version,
                          last_seq, body, status_at, due_at, sweep_at, slot_key, parent_rid)
    select n.rid, l.scope, n.run_id, 'agent', n.agent, l.queue, l.priority, l.shard, '', c.now, l.deadline_at, n.version,
           n.last_seq, n.body, c.now, c.now, c.later, n.slot_key, l.rid
    from own o
    join locked l on l.rid = o.rid
    cross join clock c
    cross join unnest(%(child_rid)s::uuid[], %(child_run_id)s::text[], %(child_agent)s::text[], %(child_body)s::text[],
                      %(child_version)s::smallint[], %(child_last_seq)s::integer[], %(child_slot_key)s::text[])
        as n(rid, run_id, agent, body, version, last_seq, slot_key)
    returning scope, run_id, queue, revision, priority, agent
),
child_messages as (
    insert into message (rid, epoch, seq, body)
    select m.rid, 0, m.seq, m.body
    from own o, unnest(%(child_message_rid)s::uuid[], %(child_message_seq)s::integer[], %(child_message_body)s::text[])
        as m(rid, seq, body)
),
child_budgets as (
    insert into budget_scope (key, limit_tokens, limit_micros)
    select b.key, b.tokens, b.micros
    from own o, unnest(%(child_budget_key)s::text[], %(child_budget_tokens)s::bigint[], %(child_budget_micros)s::bigint[])
        as b(key, tokens, micros)
    on conflict do nothing
),
returned as (
    update concurrency k set
        used    = l.used - (l.slot = 'held')::integer,
        waiting = l.waiting - (l.slot = 'waiting')::integer
    from key_row l, own o
    where k.scope = l.scope and k.key = l.key
),
closed as (
    update swarm s set status = 'settled', journal_seq = l.journal_seq + 1
    from own o, gate g, swarm_row l
    where s.rid = o.rid and l.rid = o.rid and g.final and l.status = 'active'
    returning s.rid, s.journal_seq
),
ended_event as (
    insert into swarm_event (swarm_rid, seq, type, detail, at)
    select d.rid, d.journal_seq, 'run.settled', json_build_object('status', case
               when %(status)s::text <> 'completed' then 'cancelled'
               when exists (select 1 from swarm_task t where t.swarm_rid = d.rid and t.status <> 'completed') then 'partial'
               else 'completed' end)::text, c.now
    from closed d, clock c
)
select
    case when o.rid is not null then 'applied'
         when l.rid is null then 'missing'
         when l.revision <> %(expected)s::bigint or l.parked is not null then 'conflict'
         when not exists (select 1 from fenced) then 'cancel_pending'
         when exists (select 1 from refused) then 'over_budget'
         when exists (select 1 from crowded) then 'too_many'
         else 'again' end as outcome,
-- include: state_columns
    ,
    (select key from refused) as refused_scope,
    (select reason from refused) as refused_reason,
    (select json_agg(json_build_array(key, used_tokens, used_micros, limit_tokens, limit_micros, warn_percent) order by depth)
     from standing where warn_percent is not null and (select is_new from asked)) as charged,
    (select coalesce(json_agg(json_build_array(w.scope, w.run_id, w.queue, w.revision, w.priority, w.agent)), '[]')
     from (select scope, run_id, queue, revision, priority, agent from woken
           union all
           select scope, run_id, queue, revision, priority, agent from parent_head where due
           union all
           select scope, run_id, queue, revision, priority, agent from children) w) as woken,
    (select swarm_rid from readied) as readied_swarm,
    coalesce((select open from counted), (select s.open from swarm s where s.rid = %(swarm_rid)s::uuid)) as swarm_open,
    coalesce((select still from counted), %(swarm_rid)s::uuid is not null) as swarm_still
from clock c
left join locked l on l.rid = %(rid)s::uuid
left join own o on true;
