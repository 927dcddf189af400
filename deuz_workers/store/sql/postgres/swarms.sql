-- Swarms: slots, cascades, snapshots. Order of locks as everywhere: heads by id, tasks by id, swarm row.

-- name: fill_slots
-- A statement of its own after the commit that ended a task, with a snapshot of its own. It takes the swarm row first and never
-- waits afterwards (skip locked), so the order of locks is not broken. Started tasks (answered, reconciled) go first. Before the
-- swarm is to start nothing is filled; its head is read without a lock, and the first step of that head comes here.
with
-- include: clock_and_ttl
s as materialized (
    select w.rid, w.ready, w.running, w.slots - w.running as free from swarm w, clock c
    where w.rid = %(swarm_rid)s::uuid and w.status = 'active' and w.ready > 0 and w.running < w.slots
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
    returning t.task_id, p.rid
),
due as (
    update run_head h set
        due_at   = case when h.parked is null then c.now end,
        sweep_at = case when h.parked is null then c.later end,
        ripe     = false
    from started p, clock c
    where h.rid = p.rid
    returning h.scope, h.run_id, h.queue, h.revision, h.priority, h.agent
),
counted as (
    update swarm w set
        running = s.running + (select count(*) from started),
        ready   = s.ready - (select count(*) from started)
    from s
    where w.rid = s.rid and exists (select 1 from started)
)
select scope, run_id, queue, revision, priority, agent from due;

-- name: settle_swarm
-- A note, not a due_at: a step of the swarm's head that is under way folds it or finds itself due afterwards.
with
-- include: clock_and_ttl
woken as (
    update run_head h set
        wake_seq = h.wake_seq + 1,
        sweep_at = case when h.parked is null then least(h.sweep_at, c.later) end
    from clock c
    where h.rid = %(swarm_rid)s::uuid and h.status not in ('completed', 'stopped', 'failed')
      and exists (select 1 from swarm s where s.rid = %(swarm_rid)s::uuid and s.open = 0)
    returning h.rid, h.wake_seq, h.scope, h.run_id, h.queue, h.revision, h.priority, h.agent
),
noted as (
    insert into inbox (rid, seq, kind, body) select rid, wake_seq, 'child', %(note_body)s::text from woken
)
select scope, run_id, queue, revision, priority, agent from woken;

-- name: swarms_needing_attention
-- What a death between an ending and its second statement leaves: free slots, or an end that nobody told the head.
with
-- include: clock
active as (select * from swarm where status = 'active')
select s.rid
from active s join run_head h on h.rid = s.rid, clock c
where (s.ready > 0 and s.running < s.slots and (h.status <> 'queued' or coalesce(h.due_at <= c.now, true)))
   or (s.open = 0 and h.wake_seq = h.seen_seq and (h.due_at is null or h.due_at > c.now)
       and h.status not in ('completed', 'stopped', 'failed'))
order by s.rid
limit %(limit)s::bigint;

-- name: block_downstream
-- Over all levels at once. Whether an upstream task failed is read without a lock: that never changes again, and what this snapshot
-- misses has woken the swarm's head, whose next step comes here.
with recursive
-- include: clock
doomed(task_id, run_rid) as (
    select t.task_id, t.run_rid
    from swarm_task t
    where t.swarm_rid = %(swarm_rid)s::uuid and t.status = 'pending'
      and exists (select 1 from swarm_edge e
                  join swarm_task u on u.swarm_rid = e.swarm_rid and u.task_id = e.up
                  where e.swarm_rid = t.swarm_rid and e.down = t.task_id and u.status in ('failed', 'blocked', 'cancelled'))
    union
    select t.task_id, t.run_rid
    from doomed d
    join swarm_edge e on e.swarm_rid = %(swarm_rid)s::uuid and e.up = d.task_id
    join swarm_task t on t.swarm_rid = e.swarm_rid and t.task_id = e.down and t.status = 'pending'
),
batch as materialized (select run_rid from doomed limit %(limit)s::bigint),
heads as materialized (
    select h.rid from run_head h where h.rid in (select run_rid from batch) order by h.rid for no key update
),
tasks as materialized (
    select t.task_id, t.run_rid from swarm_task t
    where t.swarm_rid = %(swarm_rid)s::uuid and t.run_rid in (select rid from heads) and t.status = 'pending'
    order by t.task_id
    for no key update
),
blocked as (
    update swarm_task t set status = 'blocked', ended_at = c.now
    from tasks k, clock c
    where t.swarm_rid = %(swarm_rid)s::uuid and t.task_id = k.task_id
    returning t.run_rid
),
-- include: stopped
-- include: swarm_row
counted as (
    update swarm s set open = l.open - (select count(*) from blocked)
    from swarm_row l
    where s.rid = l.rid
)
select (select count(*) from blocked) as changed, (select count(*) from batch) >= %(limit)s::bigint as more;

-- part: swarm_row
swarm_row as materialized (                 -- after the tasks; its numbers are those of now, see commit.sql
    select s.rid, s.open, s.ready from swarm s
    where s.rid = %(swarm_rid)s::uuid and exists (select 1 from tasks)
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
-- Tasks without a slot so far are cancelled here, the others get a note, once.
with
-- include: clock_and_ttl
batch as materialized (
    select t.run_rid
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
    select t.task_id, t.run_rid, t.status, t.status in ('pending', 'ready') and t.started_at is null as unstarted
    from swarm_task t
    where t.swarm_rid = %(swarm_rid)s::uuid and t.run_rid in (select rid from heads)
      and t.status in ('pending', 'ready', 'running', 'suspended', 'needs_reconciliation')
    order by t.task_id
    for no key update
),
blocked as (
    update swarm_task t set status = 'cancelled', ended_at = c.now
    from tasks k, clock c
    where t.swarm_rid = %(swarm_rid)s::uuid and t.task_id = k.task_id and k.unstarted
    returning t.run_rid, k.status as old_status
),
-- include: stopped
-- include: swarm_row
counted as (
    update swarm s set
        open  = l.open - (select count(*) from blocked),
        ready = l.ready - (select count(*) from blocked where old_status = 'ready')
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

-- name: task_results
select t.task_id, t.status, h.body
from swarm_edge e
join swarm_task t on t.swarm_rid = e.swarm_rid and t.task_id = e.up
join run_head h on h.rid = t.run_rid
where e.swarm_rid = %(swarm_rid)s::uuid and e.down = %(task_id)s::text
order by t.task_id collate "C";

-- name: swarm_counters
select slots, open, ready, running from swarm where rid = %(swarm_rid)s::uuid;

-- name: swarm_snapshot
select s.slots, s.open, s.ready, s.running, t.task_id, h.run_id, h.kind, h.agent, t.status, t.waiting, h.tokens, h.cost_micros,
       h.model_step,
       floor(extract(epoch from t.started_at) * 1000)::bigint as started_at_ms,
       floor(extract(epoch from t.ended_at) * 1000)::bigint as ended_at_ms,
       array(select e.up from swarm_edge e where e.swarm_rid = s.rid and e.down = t.task_id order by e.up collate "C") as depends_on
from swarm s
left join swarm_task t on t.swarm_rid = s.rid
left join run_head h on h.rid = t.run_rid
where s.rid = %(swarm_rid)s::uuid
order by t.task_id collate "C";
