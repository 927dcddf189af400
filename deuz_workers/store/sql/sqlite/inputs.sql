-- What outsiders do: notes and answers. They never touch envelope or revision.

-- name: note_before
-- A note that was sent before: its place, and the bell of its run.
select h.rid, i.seq,
-- include: bell_columns
from run_head h join inbox i on i.rid = h.rid
where h.run_id = :run_id and h.scope = :scope and i.note_id = :note_id

-- name: note_target
-- The run that may take a note: one that has not ended.
select h.rid, h.swarm_rid, h.task_id from run_head h
where h.run_id = :run_id and h.scope = :scope
  and h.status not in ('completed', 'stopped', 'failed')

-- name: note_head
-- The place of the note is the number that it raises `wake_seq` to. Three kinds clear a parking; beside one that stays, the
-- note waits. The sweep looks soon, in case that the ringer dies.
update run_head as h set
    wake_seq    = h.wake_seq + 1,
    cancel_seq  = case when :kind = 'cancel' then h.wake_seq + 1 else h.cancel_seq end,
    due_at_ms   = case when h.parked is not null and :kind in ('retry', 'reconcile', 'cancel') then :now_ms else h.due_at_ms end,
    sweep_at_ms = case
        when h.parked is not null and :kind not in ('retry', 'reconcile', 'cancel') then null
        else min(coalesce(h.sweep_at_ms, :now_ms + :ttl_ms), :now_ms + :ttl_ms) end,
    parked      = case when :kind in ('retry', 'reconcile', 'cancel') then null else h.parked end,
    attempts    = case when h.parked is not null and :kind = 'retry' then 0 else h.attempts end
where h.rid = :rid
returning wake_seq as seq, scope, run_id, queue, revision, priority, agent

-- name: note_body
insert into inbox (rid, seq, kind, note_id, body) values (:rid, :seq, :kind, :note_id, :body)

-- name: wake_target
-- A run to be woken by another one's commit, unless it is over.
select 1 from run_head where rid = :rid and status not in ('completed', 'stopped', 'failed')

-- name: answer_target
select h.rid, h.open_items, h.suspension, h.swarm_rid, h.task_id, h.parked,
-- include: bell_columns
from run_head h
where h.run_id = :run_id and h.scope = :scope

-- name: answerable
-- The item, if it is open, has the votes that were seen, and has expired or not as it is taken for.
select 1 from pending_item
where rid = :rid and suspension = :suspension and item_id = :item_id and answer is null and votes is :votes_before
  and coalesce(expires_at_ms <= :now_ms, false) = :expired

-- name: answer_item
-- Open to answered, once; or a vote more, and still open.
update pending_item set
    answer         = :answer,
    votes          = :votes,
    answer_id      = :answer_id,
    answered_at_ms = case when :answer is not null then :now_ms end
where rid = :rid and suspension = :suspension and item_id = :item_id

-- name: answer_head
-- So many open items fewer. `:wakes`: they were the last, and the run goes on at once.
update run_head as h set
    open_items  = h.open_items - :closed,
    due_at_ms   = case when :wakes then :now_ms else h.due_at_ms end,
    sweep_at_ms = case when :wakes then min(coalesce(h.sweep_at_ms, :now_ms + :ttl_ms), :now_ms + :ttl_ms) else h.sweep_at_ms end
where h.rid = :rid

-- name: item_answer
-- Of the newest suspension that had it.
select answer, answer_id, votes from pending_item where rid = :rid and item_id = :item_id order by suspension desc limit 1

-- name: open_items
select i.item_id, i.kind as item_kind, i.body as item_body, i.digest as item_digest,
       i.expires_at_ms - :now_ms as item_expires_in_ms, i.answer as item_answer, i.votes as item_votes,
       i.remind_at_ms - :now_ms as item_remind_in_ms, i.escalate_at_ms - :now_ms as item_escalate_in_ms
from run_head h join pending_item i on i.rid = h.rid and i.suspension = h.suspension
where h.run_id = :run_id and h.scope = :scope and i.answer is null
order by i.item_id

-- name: journal
select j.seq, j.body, j.at_ms
from run_head h join journal j on j.rid = h.rid
where h.run_id = :run_id and h.scope = :scope and j.seq > :after
order by j.seq
limit :limit
