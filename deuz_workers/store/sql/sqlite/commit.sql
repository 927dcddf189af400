-- The commit, in the order in which it is made. The write lock is held from the first statement on, so what the first one
-- reads cannot change under the others.

-- name: commit_gate
-- What decides, and what a refusal answers.
select h.revision, h.commit_id, h.wake_seq, h.cancel_seq, h.status, h.kind, h.suspension, h.open_items, h.parked,
       h.parked is null and (coalesce(h.due_at_ms <= :now_ms, 0) or h.wake_seq > h.seen_seq) as due
from run_head h
where h.rid = :rid

-- name: commit_head
-- An input that the envelope has not folded in makes the run due, whatever the commit wanted; so does a suspension on items that
-- are all answered. A deadline brings `due` forward while the run is not final. A final status takes unseen notes as seen.
update run_head as h set
    revision     = h.revision + 1,
    commit_id    = :commit_id,
    version      = :version,
    status       = :status,
    phase        = :phase,
    epoch        = :epoch,
    last_seq     = :last_seq,
    journal_seq  = :new_journal_seq,
    seen_seq     = case when :is_final then h.wake_seq else :seen_seq end,
    mid_step     = :mid_step,
    body         = :body,
    tokens       = :tokens,
    cost_micros  = :cost_micros,
    model_step   = :model_step,
    compactions  = :compactions,
    folded_from  = :folded_from,
    folded_to    = :folded_to,
    folded_step  = :folded_step,
    suspension   = :suspension,
    open_items   = :open_items,
    attempts     = case when :progress then 0 else h.attempts end,
    misses       = 0,
    until_at_ms  = case when :status in ('queued', 'running') then h.until_at_ms end,
    due_at_ms    = new.due_at_ms
from (
    select case
        when :is_final then :now_ms + :due_in_ms
        when o.wake_seq > :seen_seq or (:suspension is not null and :open_items = 0) then :now_ms
        else nullif(min(coalesce(:now_ms + :due_in_ms, 9223372036854775807),    -- the earliest of those that are not null
                        coalesce(o.deadline_at_ms, 9223372036854775807),
                        case when :status in ('queued', 'running') then coalesce(o.until_at_ms, 9223372036854775807)
                             else 9223372036854775807 end,
                        case when :status = 'queued' then coalesce(o.start_before_at_ms, 9223372036854775807)
                             else 9223372036854775807 end), 9223372036854775807)
        end as due_at_ms
    from run_head o where o.rid = :rid
) as new
where h.rid = :rid
returning revision, wake_seq, cancel_seq, coalesce(due_at_ms <= :now_ms, 0) as due

-- name: commit_status_at
-- Only when the status moves. SQLite writes the index of every column that is set, changed or not: two of six pages of a commit.
update run_head set status_at_ms = :now_ms, begun = 1 where rid = :rid

-- name: commit_sweep_at
-- After `commit_head`. Most commits of a run at work find it where it may stay, and so touch no index.
update run_head as h set
    sweep_at_ms = case when h.due_at_ms <= :now_ms then :now_ms + :ttl_ms else h.due_at_ms end
where h.rid = :rid
  and case when h.due_at_ms <= :now_ms
           then h.sweep_at_ms is null or h.sweep_at_ms not between :now_ms + :ttl_ms / 2 and :now_ms + :ttl_ms
           else h.sweep_at_ms is not h.due_at_ms end

-- name: commit_message
insert into message (rid, epoch, seq, body) values (:rid, :epoch, :seq, :body)

-- name: commit_receipt
insert into receipt (rid, step, call_id, seq, stage, body) values (:rid, :step, :call_id, :seq, :stage, :body)

-- name: commit_journal
insert into journal (rid, seq, at_ms, body) values (:rid, :seq, :now_ms, :body)

-- name: answered_items
select item_id, answered_at_ms, answer_id, answer, votes from pending_item
where rid = :rid and suspension = :suspension and (answer is not null or votes is not null)

-- name: commit_item
insert into pending_item (rid, suspension, item_id, kind, digest, expires_at_ms, remind_at_ms, escalate_at_ms, body,
    answered_at_ms, answer_id, answer, votes)
values (:rid, :suspension, :item_id, :kind, :digest, :now_ms + :expires_in_ms, :now_ms + :remind_in_ms, :now_ms + :escalate_in_ms,
    :body, :answered_at_ms, :answer_id, :answer, :votes)

-- name: settle_own_swarm
-- The head of a swarm became final.
update swarm set status = 'settled' where rid = :rid and status = 'active' returning rid

-- name: is_partial
select 1 from swarm_task where swarm_rid = :rid and status <> 'completed' limit 1
