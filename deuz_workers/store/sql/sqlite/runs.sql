-- Reading runs, and creating them. `:now_ms` is never null here: every operation begins with `now`.

-- name: now
-- The time that judges everything in this operation: the given one, or SQLite's own, which is the machine's.
select coalesce(:now_ms, cast((julianday('now') - 2440587.5) * 86400000.0 + 0.5 as integer)) as now_ms

-- part: head_columns
    h.rid, h.scope, h.run_id, h.kind, h.agent, h.queue, h.priority, h.shard, h.revision, h.commit_id, h.version, h.status, h.phase,
    h.epoch, h.last_seq, h.journal_seq, h.seen_seq, h.body, h.mid_step, h.wake_seq, h.cancel_seq, h.open_items, h.parked,
    h.attempts, h.due_at_ms - :now_ms as due_in_ms, h.deadline_at_ms - :now_ms as deadline_in_ms,
    h.until_at_ms - :now_ms as until_in_ms,
    h.start_before_at_ms - :now_ms as start_before_in_ms, h.tokens, h.cost_micros, h.model_step, h.swarm_rid, h.task_id,
    h.created_at_ms, h.slot_key, h.slot, h.compactions, h.folded_from, h.folded_to, h.folded_step, h.parent_rid,
    h.status = 'suspended' and exists (select 1 from pending_item p where p.rid = h.rid and p.suspension = h.suspension
                                       and p.kind = 'child_run' and p.answer is null) as waits_for_children,
    exists (select 1 from swarm_task t where t.swarm_rid = h.swarm_rid and t.task_id = h.task_id
            and t.status in ('pending', 'ready')) or h.slot is 'waiting' as waits_for_slot

-- part: bell_columns
    h.scope, h.run_id, h.queue, h.revision, h.priority, h.agent

-- name: head
select h.suspension,
-- include: head_columns
from run_head h
where h.run_id = :run_id and h.scope = :scope

-- name: load_messages
-- The record at `record`, then the messages behind `after`, without those from `gap_from` to before `gap_to`.
select seq, body from message where rid = :rid and epoch = :epoch and seq = :record
union all
select seq, body from message where rid = :rid and epoch = :epoch and seq > :after and seq < :gap_from
union all
select seq, body from message where rid = :rid and epoch = :epoch and seq > max(:after, :gap_to - 1)
order by seq

-- name: load_receipts
select step, call_id, seq, stage, body from receipt
where rid = :rid and step >= :step
order by step, call_id, seq

-- name: load_notes
select seq, kind, body from inbox
where rid = :rid and seq > :seen_seq
order by seq

-- name: load_items
select item_id, kind, body, digest, expires_at_ms - :now_ms, answer, votes, remind_at_ms - :now_ms, escalate_at_ms - :now_ms
from pending_item
where rid = :rid and suspension = :suspension
order by item_id

-- name: find_run
-- The row that is in the way of a new one: with the key in the scope, else with the name in any scope.
select h.rid, h.scope, h.run_id, h.status, h.input_digest from run_head h
where (h.scope = :scope and h.idem_key = :idem_key) or h.run_id = :run_id
order by h.scope = :scope and h.idem_key is :idem_key and h.idem_key is not null desc
limit 1

-- name: bells
select
-- include: bell_columns
from run_head h
where h.rid = :rid and h.status not in ('completed', 'stopped', 'failed')

-- name: create_head
-- `due_at_ms` is the start, or null for a task; a deadline brings it forward, and is never forgotten. What is due at once is
-- rung by whoever created it, so the sweep looks later.
insert into run_head (rid, scope, run_id, kind, agent, queue, priority, shard, version, status, last_seq, due_at_ms, sweep_at_ms,
                      deadline_at_ms, start_before_at_ms, swarm_rid, task_id, created_at_ms, status_at_ms, idem_key, input_digest,
                      slot_key, body)
select :rid, :scope, :run_id, :kind, :agent, :queue, :priority, :shard, :version, 'queued', :last_seq, due.at_ms,
       case when due.at_ms <= :now_ms then :now_ms + :ring_in_ms else due.at_ms end,
       :deadline_at_ms, :start_before_at_ms, :swarm_rid, :task_id, :now_ms, :now_ms, :idem_key, :digest, :slot_key, :body
from (select nullif(min(coalesce(:start_at_ms, 9223372036854775807), coalesce(:deadline_at_ms, 9223372036854775807),
                        coalesce(:start_before_at_ms, 9223372036854775807)), 9223372036854775807) as at_ms) as due

-- name: create_message
insert into message (rid, epoch, seq, body) values (:rid, 0, :seq, :body)

-- name: create_tag
insert into run_tag (rid, key, value) values (:rid, :key, :value)

-- name: create_budget
insert into budget_scope (key, limit_tokens, limit_micros) values (:key, :tokens, :micros)

-- name: create_swarm
insert into swarm (rid, slots, open, ready, running, total, max_tasks, max_depth, max_spawn)
values (:rid, :slots, :open, :ready, 0, :open, :max_tasks, :max_depth, :max_spawn)

-- name: create_task
insert into swarm_task (swarm_rid, run_rid, task_id, status, waiting, rank, place, timeout_ms)
values (:swarm_rid, :run_rid, :task_id, case when :waiting = 0 then 'ready' else 'pending' end, :waiting, :rank, :place, :timeout_ms)

-- name: create_edge
insert into swarm_edge (swarm_rid, up, down, soft) values (:swarm_rid, :up, :down, :soft)
