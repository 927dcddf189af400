-- Chats, and how far runs have come in writing theirs.

-- name: load_chat
select scope, revision, body from chat where chat_id = :chat_id

-- name: write_chat
-- Over the revision that was read. A write that is sent again after its answer got lost finds another revision.
update chat set revision = revision + 1, body = :body, updated_at_ms = :now_ms
where chat_id = :chat_id and scope = :scope and body is not null and revision = :expected
returning revision

-- name: make_chat
insert into chat (chat_id, scope, revision, body, updated_at_ms) values (:chat_id, :scope, 1, :body, :now_ms)
on conflict (chat_id) do nothing
returning revision

-- name: save_chat
-- Whatever is there, unless it was deleted or is of another scope.
insert into chat (chat_id, scope, revision, body, updated_at_ms) values (:chat_id, :scope, 1, :body, :now_ms)
on conflict (chat_id) do update set revision = chat.revision + 1, body = excluded.body, updated_at_ms = excluded.updated_at_ms
    where chat.scope = excluded.scope and chat.body is not null
returning revision

-- name: delete_chat
update chat set revision = revision + 1, body = null, updated_at_ms = :now_ms
where chat_id = :chat_id and scope = :scope and body is not null
returning revision

-- name: chat_state
select seq, body from run_chat where rid = :rid

-- name: chat_state_head
select revision, open_items, wake_seq, parked, status in ('suspended', 'completed', 'stopped', 'failed') as rests
from run_head where rid = :rid

-- name: keep_chat_state
insert into run_chat (rid, seq, body) values (:rid, :seq + 1, :body)
on conflict (rid) do update set seq = excluded.seq, body = excluded.body where run_chat.seq = :seq
returning seq

-- name: chat_state_due
update run_head set
    due_at_ms   = due.at_ms,
    sweep_at_ms = case when due.at_ms <= :now_ms then sweep_at_ms else due.at_ms end
from (select case when h.status = 'suspended' and h.deadline_at_ms < coalesce(:now_ms + :due_in_ms, h.deadline_at_ms + 1)
                  then h.deadline_at_ms else :now_ms + :due_in_ms end as at_ms
      from run_head h where h.rid = :rid) as due
where rid = :rid

-- name: chat_state_after
select h.parked is null and (coalesce(h.due_at_ms <= :now_ms, 0)
                             or (h.status not in ('completed', 'stopped', 'failed') and h.wake_seq > h.seen_seq)) as due
from run_head h where h.rid = :rid

-- name: all_messages
select epoch, seq, body from message
where rid = :rid and seq >= 0
order by epoch, seq

-- name: prune_run_chat
delete from run_chat where rid = :rid
