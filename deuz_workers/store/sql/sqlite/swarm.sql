-- Tasks and slots. Every change of a task's status moves the counters by the status that the row has, in the same transaction.

-- name: task
select status from swarm_task where swarm_rid = :swarm_rid and task_id = :task_id

-- name: task_status
update swarm_task set status = :status,
    started_at_ms = case when :status = 'running' then coalesce(started_at_ms, :now_ms) else started_at_ms end,
    ended_at_ms = case when :status in ('completed', 'failed', 'blocked', 'cancelled') then :now_ms end
where swarm_rid = :swarm_rid and task_id = :task_id

-- name: dependents
-- One predecessor fewer for all that wait for its completion, or for any end of it; who waits for none is ready.
update swarm_task set
    waiting = waiting - 1,
    status  = case when waiting = 1 and status = 'pending' then 'ready' else status end
where swarm_rid = :swarm_rid
  and task_id in (select down from swarm_edge where swarm_rid = :swarm_rid and up = :task_id and (soft or :status = 'completed'))
returning status = 'ready' as is_ready

-- name: swarm_happened
-- The place of the next event in the journal of the swarm.
update swarm set journal_seq = journal_seq + 1 where rid = :swarm_rid returning journal_seq as seq

-- name: swarm_event
insert into swarm_event (swarm_rid, seq, at_ms, type, task_id, detail)
values (:swarm_rid, :seq, :now_ms, :type, :task_id, :detail)

-- name: swarm_events
select e.seq, e.type, e.task_id, e.detail, e.at_ms
from run_head h join swarm_event e on e.swarm_rid = h.rid
where h.run_id = :run_id and h.scope = :scope and e.seq > :after
order by e.seq
limit :limit

-- name: swarm_row
select * from swarm where rid = :swarm_rid

-- name: swarm_moves
update swarm set still = 0 where rid = :swarm_rid

-- name: swarm_cancelling
update swarm set cancelling = 1 where rid = :swarm_rid and status = 'active' and not cancelling returning rid

-- name: drain_swarm
-- No task gets a slot from here on. The mark stays readable until somebody resumes it.
update swarm set draining = 1, still = still and draining
where status = 'active' and rid = (select rid from run_head where run_id = :run_id and scope = :scope)
returning rid

-- name: resumed_swarm
update swarm set draining = 0, still = 0
where status = 'active' and rid = (select rid from run_head where run_id = :run_id and scope = :scope)
  and (:expected is null or journal_seq = :expected)
returning rid

-- name: spawn_row
select s.total, s.max_tasks, s.max_depth, s.max_spawn, t.depth, h.body, h.queue
from swarm s
join swarm_task t on t.swarm_rid = s.rid and t.task_id = :task_id
join run_head h on h.rid = s.rid
where s.rid = :swarm_rid

-- name: spawn_head
-- As its creator's: scope, priority, shard and deadline.
insert into run_head (rid, scope, run_id, kind, agent, queue, priority, shard, version, status, last_seq, due_at_ms, sweep_at_ms,
                      deadline_at_ms, swarm_rid, task_id, created_at_ms, status_at_ms, input_digest, slot_key, body)
select :rid, p.scope, :run_id, :kind, :agent, :queue, p.priority, p.shard, 1, 'queued', :last_seq, p.deadline_at_ms,
       p.deadline_at_ms, p.deadline_at_ms, p.swarm_rid, :task_id, :now_ms, :now_ms, '', :slot_key, :body
from run_head p where p.rid = :parent_rid

-- name: spawn_tags
insert into run_tag (rid, key, value) select :rid, key, value from run_tag where rid = :parent_rid

-- name: spawn_task
insert into swarm_task (swarm_rid, run_rid, task_id, status, waiting, rank, place, depth, timeout_ms)
values (:swarm_rid, :rid, :task_id, case when :waiting = 0 then 'ready' else 'pending' end, :waiting, :rank, :place, :depth,
        :timeout_ms)

-- name: grown
update swarm set total = total + :tasks where rid = :swarm_rid

-- name: count
update swarm set open = open + :open, ready = ready + :ready, running = running + :running
where rid = :swarm_rid

-- name: open_tasks
select open, running = 0 and (ready = 0 or draining) as still from swarm where rid = :swarm_rid

-- name: free_slots
-- None before the swarm is to start, once somebody asked for its end, or that no task begins.
select s.slots - s.running as free
from swarm s join run_head h on h.rid = s.rid
where s.rid = :swarm_rid and s.status = 'active' and s.ready > 0 and s.running < s.slots
  and not s.cancelling and not s.draining
  and (h.status <> 'queued' or coalesce(h.due_at_ms <= :now_ms, true))

-- name: next_tasks
-- Who was started before goes first, then by rank.
select task_id, run_rid, timeout_ms from swarm_task
where swarm_rid = :swarm_rid and status = 'ready'
order by started_at_ms is null, rank, task_id
limit :free

-- name: start_head
update run_head as h set
    due_at_ms   = case when h.parked is null then :now_ms end,
    sweep_at_ms = case when h.parked is null then :now_ms + :ttl_ms end,
    until_at_ms = :now_ms + :timeout_ms
where h.rid = :run_rid
returning scope, run_id, queue, revision, priority, agent

-- name: settle_target
-- The swarm's own head, when no task is open and it is not over. It gets a note and no `due_at_ms`: a step of it that is under way
-- folds the note, or finds itself due afterwards.
select h.rid,
-- include: bell_columns
from swarm s join run_head h on h.rid = s.rid
where s.rid = :swarm_rid and s.open = 0 and h.status not in ('completed', 'stopped', 'failed')

-- part: nothing_moves
    s.open > 0 and s.running = 0 and (s.ready = 0 or s.draining) and not s.still and not s.cancelling
    and h.wake_seq = h.seen_seq and coalesce(h.due_at_ms > :now_ms, 1)

-- name: stands_still
-- Nothing of the swarm runs or can run before somebody answers, and its journal does not say so yet.
select s.draining from swarm s join run_head h on h.rid = s.rid
where s.rid = :swarm_rid and s.status = 'active' and h.status not in ('completed', 'stopped', 'failed') and
-- include: nothing_moves

-- name: said_still
update swarm set still = 1 where rid = :swarm_rid

-- name: swarms_needing_attention
select s.rid
from swarm s join run_head h on h.rid = s.rid
where s.status = 'active'
  and ((s.ready > 0 and s.running < s.slots and not s.cancelling and not s.draining
        and (h.status <> 'queued' or coalesce(h.due_at_ms <= :now_ms, true)))
       or (s.open = 0 and h.wake_seq = h.seen_seq and coalesce(h.due_at_ms > :now_ms, 1)
           and h.status not in ('completed', 'stopped', 'failed'))
       or (h.status <> 'queued' and
-- include: nothing_moves
          ))
order by s.rid
limit :limit

-- name: block_next
-- Pending tasks next to one that will never complete.
select t.task_id, t.run_rid from swarm_task t
where t.swarm_rid = :swarm_rid and t.status = 'pending' and exists (
    select 1 from swarm_edge e join swarm_task u on u.swarm_rid = e.swarm_rid and u.task_id = e.up
    where e.swarm_rid = t.swarm_rid and e.down = t.task_id and not e.soft and u.status in ('failed', 'blocked', 'cancelled'))
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
select u.task_id, u.status, h.body, e.soft
from swarm_edge e
join swarm_task u on u.swarm_rid = e.swarm_rid and u.task_id = e.up
join run_head h on h.rid = u.run_rid
where e.swarm_rid = :swarm_rid and e.down = :task_id
order by u.task_id

-- name: swarm_counters
select slots, open, ready, running, total, cancelling, draining, still, journal_seq from swarm where rid = :swarm_rid

-- name: swarm_snapshot
select s.slots, s.open, s.ready, s.running, s.total, s.cancelling, s.draining, s.still, s.journal_seq, t.task_id, h.run_id, h.kind,
       h.agent, t.status, t.waiting, h.tokens, h.cost_micros, h.model_step, t.started_at_ms, t.ended_at_ms, t.timeout_ms, t.depth
from swarm s
left join swarm_task t on t.swarm_rid = s.rid
left join run_head h on h.rid = t.run_rid
where s.rid = :swarm_rid
order by t.place, t.task_id

-- name: swarm_edges
select down, up, soft from swarm_edge where swarm_rid = :swarm_rid order by down, up
