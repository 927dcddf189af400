-- Tasks and slots. Every change of a task's status moves the counters by the status that the row has, in the same transaction.

-- name: task
select status from swarm_task where swarm_rid = :swarm_rid and task_id = :task_id

-- name: task_status
update swarm_task set status = :status,
    started_at_ms = case when :status = 'running' then coalesce(started_at_ms, :now_ms) else started_at_ms end,
    ended_at_ms = case when :status in ('completed', 'failed', 'blocked', 'cancelled') then :now_ms end
where swarm_rid = :swarm_rid and task_id = :task_id

-- name: dependents
-- One predecessor fewer; who waits for none is ready.
update swarm_task set
    waiting = waiting - 1,
    status  = case when waiting = 1 and status = 'pending' then 'ready' else status end
where swarm_rid = :swarm_rid and task_id in (select down from swarm_edge where swarm_rid = :swarm_rid and up = :task_id)
returning status = 'ready' as is_ready

-- name: count
update swarm set open = open + :open, ready = ready + :ready, running = running + :running
where rid = :swarm_rid

-- name: open_tasks
select open from swarm where rid = :swarm_rid

-- name: free_slots
-- None before the swarm is to start.
select s.slots - s.running as free
from swarm s join run_head h on h.rid = s.rid
where s.rid = :swarm_rid and s.status = 'active' and s.ready > 0 and s.running < s.slots
  and (h.status <> 'queued' or coalesce(h.due_at_ms <= :now_ms, true))

-- name: next_tasks
-- Who was started before goes first, then by rank.
select task_id, run_rid from swarm_task
where swarm_rid = :swarm_rid and status = 'ready'
order by started_at_ms is null, rank, task_id
limit :free

-- name: start_head
update run_head as h set
    due_at_ms   = case when h.parked is null then :now_ms end,
    sweep_at_ms = case when h.parked is null then :now_ms + :ttl_ms end
where h.rid = :run_rid
returning scope, run_id, queue, revision, priority, agent

-- name: settle_target
-- The swarm's own head, when no task is open and it is not over. It gets a note and no `due_at_ms`: a step of it that is under way
-- folds the note, or finds itself due afterwards.
select h.rid,
-- include: bell_columns
from swarm s join run_head h on h.rid = s.rid
where s.rid = :swarm_rid and s.open = 0 and h.status not in ('completed', 'stopped', 'failed')

-- name: swarms_needing_attention
select s.rid
from swarm s join run_head h on h.rid = s.rid
where s.status = 'active'
  and ((s.ready > 0 and s.running < s.slots and (h.status <> 'queued' or coalesce(h.due_at_ms <= :now_ms, true)))
       or (s.open = 0 and h.wake_seq = h.seen_seq and coalesce(h.due_at_ms > :now_ms, 1)
           and h.status not in ('completed', 'stopped', 'failed')))
order by s.rid
limit :limit

-- name: block_next
-- Pending tasks next to one that will never complete.
select t.task_id, t.run_rid from swarm_task t
where t.swarm_rid = :swarm_rid and t.status = 'pending' and exists (
    select 1 from swarm_edge e join swarm_task u on u.swarm_rid = e.swarm_rid and u.task_id = e.up
    where e.swarm_rid = t.swarm_rid and e.down = t.task_id and u.status in ('failed', 'blocked', 'cancelled'))
limit :limit

-- name: cancel_next
-- Open tasks that the cancel has not reached: never started ones end here, others get a note once.
select t.task_id, t.run_rid, t.status, t.started_at_ms is null and t.status in ('pending', 'ready') as never_started
from swarm_task t join run_head h on h.rid = t.run_rid
where t.swarm_rid = :swarm_rid and (
    t.status in ('pending', 'ready') and t.started_at_ms is null
    or t.status in ('ready', 'running', 'suspended', 'needs_reconciliation') and h.cancel_seq = 0
       and h.status not in ('completed', 'stopped', 'failed'))
order by t.rank, t.task_id
limit :limit

-- name: stop_head
-- The head of a task that ends before it began: a new revision, so that no holder of the old one can go on.
update run_head set
    revision = revision + 1, commit_id = null, status = 'stopped', status_at_ms = :now_ms, seen_seq = wake_seq, parked = null,
    due_at_ms = null, sweep_at_ms = null, suspension = null, open_items = 0
where rid = :run_rid and status not in ('completed', 'stopped', 'failed')

-- name: task_results
select u.task_id, u.status, h.body
from swarm_edge e
join swarm_task u on u.swarm_rid = e.swarm_rid and u.task_id = e.up
join run_head h on h.rid = u.run_rid
where e.swarm_rid = :swarm_rid and e.down = :task_id
order by u.task_id

-- name: swarm_counters
select slots, open, ready, running from swarm where rid = :swarm_rid

-- name: swarm_snapshot
select s.slots, s.open, s.ready, s.running, t.task_id, h.run_id, h.kind, h.agent, t.status, t.waiting, h.tokens, h.cost_micros,
       h.model_step, t.started_at_ms, t.ended_at_ms
from swarm s
left join swarm_task t on t.swarm_rid = s.rid
left join run_head h on h.rid = t.run_rid
where s.rid = :swarm_rid
order by t.task_id

-- name: swarm_edges
select down, up from swarm_edge where swarm_rid = :swarm_rid order by down, up
