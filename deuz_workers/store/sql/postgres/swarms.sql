-- Swarms: slots, cascades, snapshots. Order of locks as everywhere: heads by id, tasks by id, swarm row.

-- name: fill_slots
-- A statement of its own after the commit that ended a task, with a snapshot of its own. It takes the swarm row first and never
-- waits afterwards (skip locked), so the order of locks is not broken. Started tasks (answered, reconciled) go first. Before the
-- swarm is to start nothing is filled; its head is read without a lock, and the first step of that head comes here. Nor is
-- anything once somebody asked for its end, or that no task begins.
with
-- include: clock_and_ttl
s as materialized (
    select w.rid, w.ready, w.running, w.slots - w.running as free, w.journal_seq from swarm w, clock c
    where w.rid = %(swarm_rid)s::uuid and w.status = 'active' and w.ready > 0 and w.running < w.slots
      and not w.cancelling and not w.draining
      and exists (select 1 from run_head h where h.rid = w.rid and (h.status <> 'queued' or coalesce(h.due_at <= c.now, true)))
    for no key update of w
),
pick as materialized (
    select t.swarm_rid, t.task_id, h.rid
    from swarm_task t join run_head h on h.rid = t.run_rid
    where t.swarm_rid = (select rid from s) and t.status = 'ready'
    order by t.started_at is null, t.rank
    limit (select free from s)
    for no key update of t, h skip locked
),
started as (
    update swarm_task t set status = 'running', started_at = coalesce(t.started_at, c.now)
    from pick p, clock c
    where t.swarm_rid = p.swarm_rid and t.task_id = p.task_id
    returning t.task_id, t.rank, t.timeout_ms, p.rid
),
due as (
    update run_head h set
        due_at   = case when h.parked is null then c.now end,
        sweep_at = case when h.parked is null then c.later end,
        until_at = c.now + p.timeout_ms * interval '1 millisecond',
        ripe     = false
    from started p, clock c
    where h.rid = p.rid
    returning h.scope, h.run_id, h.queue, h.revision, h.priority, h.agent
),
told as (
    insert into swarm_event (swarm_rid, seq, type, task_id, at)
    select s.rid, s.journal_seq + row_number() over (order by p.rank, p.task_id), 'task.started', p.task_id, c.now
    from s, started p, clock c
),
counted as (
    update swarm w set
        running     = s.running + (select count(*) from started),
        ready       = s.ready - (select count(*) from started),
        journal_seq = s.journal_seq + (select count(*) from started),
        still       = false
    from s
    where w.rid = s.rid and exists (select 1 from started)
)
select scope, run_id, queue, revision, priority, agent from due;

-- part: nothing_moves
-- Of a swarm `s` and its head `h`, whose next step may move something: nothing runs or can run before somebody answers.
    s.open > 0 and s.running = 0 and (s.ready = 0 or s.draining) and not s.still and not s.cancelling
    and h.wake_seq = h.seen_seq and (h.due_at is null or h.due_at > c.now)

-- name: settle_swarm
-- A note, not a due_at: a step of the swarm's head that is under way folds it or finds itself due afterwards. Where tasks are open
-- and none of them moves, the journal says so, once: until a task begins again. Head before swarm row: what a step of the head may
-- still do is judged from its row of now.
with
-- include: clock_and_ttl
h as materialized (
    select * from run_head h
    where h.rid = %(swarm_rid)s::uuid and h.status not in ('completed', 'stopped', 'failed')
    for no key update
),
s as materialized (
    select * from swarm s where s.rid = (select rid from h) and s.status = 'active' for no key update
),
woken as (
    update run_head x set
        wake_seq = h.wake_seq + 1,
        sweep_at = case when h.parked is null then least(h.sweep_at, c.later) end
    from h, s, clock c
    where x.rid = h.rid and s.open = 0
    returning x.rid, x.wake_seq, x.scope, x.run_id, x.queue, x.revision, x.priority, x.agent
),
noted as (
    insert into inbox (rid, seq, kind, body) select rid, wake_seq, 'child', %(note_body)s::text from woken
),
still as materialized (
    select s.rid, s.journal_seq, s.draining from s, h, clock c
    where
-- include: nothing_moves
),
told as (
    insert into swarm_event (swarm_rid, seq, type, detail, at)
    select x.rid, x.journal_seq + 1, 'run.drained', null, c.now from still x, clock c where x.draining
    union all
    select x.rid, x.journal_seq + 1 + x.draining::integer, 'run.settled', '{"status":"suspended"}', c.now from still x, clock c
),
counted as (
    update swarm w set still = true, journal_seq = x.journal_seq + 1 + x.draining::integer from still x where w.rid = x.rid
)
select scope, run_id, queue, revision, priority, agent from woken;

-- name: swarms_needing_attention
-- What a death between an ending and its second statement leaves: free slots, an end that nobody told the head, a stand that
-- nobody told the journal.
with
-- include: clock
active as (select * from swarm where status = 'active')
select s.rid
from active s join run_head h on h.rid = s.rid, clock c
where (s.ready > 0 and s.running < s.slots and not s.cancelling and not s.draining
       and (h.status <> 'queued' or coalesce(h.due_at <= c.now, true)))
   or (s.open = 0 and h.wake_seq = h.seen_seq and (h.due_at is null or h.due_at > c.now)
       and h.status not in ('completed', 'stopped', 'failed'))
   or (h.status <> 'queued' and
-- include: nothing_moves
      )
order by s.rid
limit %(limit)s::bigint;

-- name: drain_swarm
-- No task gets a slot from here on. The mark stays readable until somebody resumes it.
update swarm s set draining = true, still = s.still and s.draining
from run_head h
where h.rid = s.rid and h.scope = %(scope)s::text and h.run_id = %(run_id)s::text and s.status = 'active'
returning s.rid;

-- name: resume_swarm
-- Slots are filled again. `expected`: the newest event that the caller saw; of two that saw the same one resumes it.
with
-- include: clock
resumed as (
    update swarm s set draining = false, still = false, journal_seq = s.journal_seq + 1
    from run_head h
    where h.rid = s.rid and h.scope = %(scope)s::text and h.run_id = %(run_id)s::text and s.status = 'active'
      and (%(expected)s::bigint is null or s.journal_seq = %(expected)s::bigint)
    returning s.rid, s.journal_seq
),
told as (
    insert into swarm_event (swarm_rid, seq, type, at) select r.rid, r.journal_seq, 'run.resumed', c.now from resumed r, clock c
)
select rid from resumed;

-- name: block_downstream
-- Over all levels at once. Whether an upstream task failed is read without a lock: that never changes again, and what this snapshot
-- misses has woken the swarm's head, whose next step comes here. A task that somebody gave a dependent meanwhile is left to the next
-- batch, which sees it. Dependents that only wait for an end have one wait less.
with recursive
-- include: clock
doomed(task_id) as (
    select t.task_id
    from swarm_task t
    where t.swarm_rid = %(swarm_rid)s::uuid and t.status = 'pending'
      and exists (select 1 from swarm_edge e
                  join swarm_task u on u.swarm_rid = e.swarm_rid and u.task_id = e.up
                  where e.swarm_rid = t.swarm_rid and e.down = t.task_id and not e.soft
                    and u.status in ('failed', 'blocked', 'cancelled'))
    union
    select t.task_id
    from doomed d
    join swarm_edge e on e.swarm_rid = %(swarm_rid)s::uuid and e.up = d.task_id and not e.soft
    join swarm_task t on t.swarm_rid = e.swarm_rid and t.task_id = e.down and t.status = 'pending'
),
batch as materialized (
    select t.task_id, t.run_rid
    from (select task_id from doomed limit %(limit)s::bigint) d
    join swarm_task t on t.swarm_rid = %(swarm_rid)s::uuid and t.task_id = d.task_id
),
edges as materialized (
    select e.up, e.down, e.soft from swarm_edge e
    where e.swarm_rid = %(swarm_rid)s::uuid and e.up = any (array(select task_id from batch))
),
heads as materialized (
    select h.rid from run_head h where h.rid in (select run_rid from batch) order by h.rid for no key update
),
tasks as materialized (
    select t.task_id, t.run_rid, t.place, t.waiting, t.downstream
    from swarm_task t
    where t.swarm_rid = %(swarm_rid)s::uuid and t.status = 'pending'
      and t.task_id = any (array(select task_id from batch union select down from edges where soft))
      and (select count(*) from heads) >= 0
    order by t.task_id
    for no key update
),
ending as materialized (
    select k.task_id from tasks k join batch b on b.task_id = k.task_id
    where k.downstream = (select count(*) from edges e where e.up = k.task_id)
),
turn as materialized (
    select k.task_id, k.place, k.waiting, k.task_id in (select task_id from ending) as ends,
           (select count(*) from edges e where e.down = k.task_id and e.soft and e.up in (select task_id from ending)) as freed
    from tasks k
),
moved as (
    update swarm_task t set
        status   = case when n.ends then 'blocked' when n.waiting = n.freed then 'ready' else 'pending' end,
        waiting  = n.waiting - n.freed,
        ended_at = case when n.ends then c.now end
    from turn n, clock c
    where t.swarm_rid = %(swarm_rid)s::uuid and t.task_id = n.task_id and (n.ends or n.freed > 0)
    returning t.task_id, t.run_rid, t.place, t.status
),
blocked as materialized (select task_id, run_rid, place, 'pending' as old_status from moved where status = 'blocked'),
-- include: stopped
-- include: swarm_row
told as (
    insert into swarm_event (swarm_rid, seq, type, task_id, at)
    select l.rid, l.journal_seq + row_number() over (order by b.place, b.task_id), 'task.blocked', b.task_id, c.now
    from swarm_row l, blocked b, clock c
),
counted as (
    update swarm s set
        open        = l.open - (select count(*) from blocked),
        ready       = l.ready + (select count(*) from moved where status = 'ready'),
        journal_seq = l.journal_seq + (select count(*) from blocked)
    from swarm_row l
    where s.rid = l.rid
)
select (select count(*) from blocked) as changed,
       (select count(*) from batch) >= %(limit)s::bigint or (select count(*) from blocked) < (select count(*) from batch) as more;

-- part: swarm_row
swarm_row as materialized (                 -- after the tasks; its numbers are those of now, see commit.sql
    select s.rid, s.open, s.ready, s.journal_seq from swarm s
    where s.rid = %(swarm_rid)s::uuid and (select count(*) from tasks) > 0
    for no key update
),

-- part: stopped
stopped as (                                -- a run that never started ends with its task; its lease holder, if any, conflicts
    update run_head h set
        status = 'stopped', revision = h.revision + 1, commit_id = null, seen_seq = h.wake_seq, suspension = 0, open_items = 0,
        status_at = c.now, due_at = null, sweep_at = null, ripe = false, parked = null
    from blocked b, clock c
    where h.rid = b.run_rid and h.status not in ('completed', 'stopped', 'failed')
    returning h.rid
),

-- name: cancel_tasks
-- Tasks without a slot so far are cancelled here, the others get a note, once. Nobody is freed by that: all that wait are cancelled.
with
-- include: clock_and_ttl
batch as materialized (
    select t.task_id, t.run_rid
    from swarm_task t join run_head h on h.rid = t.run_rid
    where t.swarm_rid = %(swarm_rid)s::uuid
      and t.status in ('pending', 'ready', 'running', 'suspended', 'needs_reconciliation')
      and ((t.status in ('pending', 'ready') and t.started_at is null)
           or (h.cancel_seq = 0 and h.status not in ('completed', 'stopped', 'failed')))
    limit %(limit)s::bigint
),
heads as materialized (
    select h.rid, h.status, h.cancel_seq from run_head h
    where h.rid in (select run_rid from batch)
    order by h.rid
    for no key update
),
tasks as materialized (
    select t.task_id, t.run_rid, t.place, t.status, t.status in ('pending', 'ready') and t.started_at is null as unstarted
    from swarm_task t
    where t.swarm_rid = %(swarm_rid)s::uuid and t.task_id = any (array(select task_id from batch))
      and t.status in ('pending', 'ready', 'running', 'suspended', 'needs_reconciliation')
      and (select count(*) from heads) >= 0
    order by t.task_id
    for no key update
),
blocked as (
    update swarm_task t set status = 'cancelled', ended_at = c.now
    from tasks k, clock c
    where t.swarm_rid = %(swarm_rid)s::uuid and t.task_id = k.task_id and k.unstarted
    returning t.task_id, t.run_rid, k.place, k.status as old_status
),
-- include: stopped
-- include: swarm_row
told as (
    insert into swarm_event (swarm_rid, seq, type, task_id, at)
    select l.rid, l.journal_seq + row_number() over (order by b.place, b.task_id), 'task.cancelled', b.task_id, c.now
    from swarm_row l, blocked b, clock c
),
counted as (
    update swarm s set
        open        = l.open - (select count(*) from blocked),
        ready       = l.ready - (select count(*) from blocked where old_status = 'ready'),
        journal_seq = l.journal_seq + (select count(*) from blocked)
    from swarm_row l
    where s.rid = l.rid and exists (select 1 from blocked)
),
woken as (
    update run_head h set
        wake_seq   = h.wake_seq + 1,
        cancel_seq = h.wake_seq + 1,
        due_at     = case when h.parked is null then h.due_at else c.now end,
        sweep_at   = least(h.sweep_at, c.later),
        parked     = null
    from heads l, tasks k, clock c
    where h.rid = l.rid and k.run_rid = l.rid and not k.unstarted
      and l.cancel_seq = 0 and l.status not in ('completed', 'stopped', 'failed')
    returning h.rid, h.wake_seq, h.scope, h.run_id, h.queue, h.revision, h.priority, h.agent
),
noted as (
    insert into inbox (rid, seq, kind, body) select rid, wake_seq, 'cancel', %(note_body)s::text from woken
)
select (select count(*) from blocked) + (select count(*) from woken) as changed,
       (select count(*) from batch) >= %(limit)s::bigint as more,
       (select coalesce(json_agg(json_build_array(w.scope, w.run_id, w.queue, w.revision, w.priority, w.agent)), '[]')
        from woken w) as bells;

-- name: swarm_events
select e.seq, e.type, e.task_id, e.detail, floor(extract(epoch from e.at) * 1000)::bigint as at_ms
from run_head h join swarm_event e on e.swarm_rid = h.rid
where h.run_id = %(run_id)s::text and h.scope = %(scope)s::text and e.seq > %(after)s::bigint
order by e.seq
limit %(limit)s::bigint;

-- name: spawn_ground
-- What a task that may create others has to know: its depth, the limits, the swarm's own record, which of the named tasks exist.
select s.total, s.max_tasks, s.max_depth, s.max_spawn, t.depth, h.body, h.queue,
       array(select x.task_id from swarm_task x
             where x.swarm_rid = s.rid and x.task_id = any (%(task_ids)s::text[])) as existing
from swarm s
join swarm_task t on t.swarm_rid = s.rid and t.task_id = %(task_id)s::text
join run_head h on h.rid = s.rid
where s.rid = %(swarm_rid)s::uuid;

-- name: task_results
select t.task_id, t.status, h.body, e.soft
from swarm_edge e
join swarm_task t on t.swarm_rid = e.swarm_rid and t.task_id = e.up
join run_head h on h.rid = t.run_rid
where e.swarm_rid = %(swarm_rid)s::uuid and e.down = %(task_id)s::text
order by t.task_id collate "C";

-- name: swarm_counters
select slots, open, ready, running, total, cancelling, draining, still, journal_seq from swarm where rid = %(swarm_rid)s::uuid;

-- name: swarm_snapshot
select s.slots, s.open, s.ready, s.running, s.total, s.cancelling, s.draining, s.still, s.journal_seq, t.task_id, h.run_id, h.kind, h.agent, t.status, t.waiting, h.tokens, h.cost_micros,
       h.model_step,
       floor(extract(epoch from t.started_at) * 1000)::bigint as started_at_ms,
       floor(extract(epoch from t.ended_at) * 1000)::bigint as ended_at_ms,
       t.timeout_ms, t.depth,
       array(select e.up from swarm_edge e where e.swarm_rid = s.rid and e.down = t.task_id and not e.soft
             order by e.up collate "C") as depends_on,
       array(select e.up from swarm_edge e where e.swarm_rid = s.rid and e.down = t.task_id and e.soft
             order by e.up collate "C") as after
from swarm s
left join swarm_task t on t.swarm_rid = s.rid
left join run_head h on h.rid = t.run_rid
where s.rid = %(swarm_rid)s::uuid
order by t.place, t.task_id collate "C";
