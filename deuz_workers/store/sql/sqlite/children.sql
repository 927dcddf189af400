-- Delegated runs.

-- name: create_child
-- Queued and due at once under what the row of its parent says; whoever makes the commit rings, so the sweep looks later.
insert into run_head (rid, scope, run_id, kind, agent, queue, priority, shard, version, status, last_seq, due_at_ms, sweep_at_ms,
                      deadline_at_ms, created_at_ms, status_at_ms, input_digest, slot_key, body, parent_rid)
select :rid, p.scope, :run_id, 'agent', :agent, p.queue, p.priority, p.shard, :version, 'queued', :last_seq, :now_ms,
       :now_ms + :ttl_ms, p.deadline_at_ms, :now_ms, :now_ms, '', :slot_key, :body, p.rid
from run_head p
where p.rid = :parent_rid
returning scope, run_id, queue, revision, priority, agent

-- name: parent_target
-- The parent, while the item is open in its current suspension.
select h.open_items, h.suspension, h.swarm_rid, h.task_id, h.parked,
-- include: bell_columns
from run_head h join pending_item i on i.rid = h.rid and i.suspension = h.suspension
where h.rid = :rid and h.status = 'suspended' and i.item_id = :item_id and i.kind = 'child_run' and i.answer is null

-- name: cancel_children_next
select h.rid from run_head h
where h.parent_rid = :rid and h.cancel_seq = 0 and h.status not in ('completed', 'stopped', 'failed')
order by h.rid
limit :limit

-- name: cancel_children_done
-- The work after the end is done.
update run_head set due_at_ms = null, sweep_at_ms = null where rid = :rid and status in ('completed', 'stopped', 'failed')

-- name: tree
with recursive members(rid, depth) as (
    select h.rid, 0 from run_head h where h.run_id = :run_id and h.scope = :scope
    union all
    select t.run_rid, 1 from run_head h join swarm_task t on t.swarm_rid = h.rid
    where h.run_id = :run_id and h.scope = :scope
    union all
    select h.rid, m.depth + 1 from members m join run_head h on h.parent_rid = m.rid
)
select h.rid, h.parent_rid, h.run_id, h.agent, h.status, h.parked,
       h.parked is null and (h.status in ('queued', 'running')
                             or (h.status = 'suspended' and (coalesce(h.due_at_ms <= :now_ms, 0) or h.wake_seq > h.seen_seq)))
       as goes_on,
       i.item_id, i.kind as item_kind, i.body as item_body, i.digest as item_digest,
       i.expires_at_ms - :now_ms as item_expires_in_ms, i.answer as item_answer, i.votes as item_votes,
       i.remind_at_ms - :now_ms as item_remind_in_ms, i.escalate_at_ms - :now_ms as item_escalate_in_ms
from members m join run_head h on h.rid = m.rid
left join pending_item i on i.rid = h.rid and i.suspension = h.suspension and i.answer is null and i.kind <> 'child_run'
where m.depth = 0 or h.status not in ('completed', 'stopped', 'failed')
order by m.depth, h.run_id, i.item_id

-- name: children
select run_id, agent, status, model_step, tokens, cost_micros from run_head
where parent_rid = :rid
order by created_at_ms, run_id
limit :limit
