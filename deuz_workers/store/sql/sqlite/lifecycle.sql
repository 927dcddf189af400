-- The end of rows, and rows that come from elsewhere: prune, compact_ledger, insert.

-- name: prune_chosen
-- Ended runs of their own and whole swarms whose tasks have all ended, oldest change of status first.
select h.rid from run_head h
where h.swarm_rid is null and h.parent_rid is null and h.parked is null and h.due_at_ms is null
  and h.status in (select value from json_each(:status)) and h.status in ('completed', 'stopped', 'failed')
  and h.status_at_ms < :now_ms - :older_ms
  and (:scope is null or h.scope = :scope)
  and not exists (select 1 from swarm_task t join run_head r on r.rid = t.run_rid
                  where t.swarm_rid = h.rid and r.status not in ('completed', 'stopped', 'failed'))
  and not exists (
      with recursive below(rid, status) as (
          select r.rid, r.status from run_head r
          where r.parent_rid = h.rid or r.parent_rid in (select t.run_rid from swarm_task t where t.swarm_rid = h.rid)
          union all
          select r.rid, r.status from below b join run_head r on r.parent_rid = b.rid
      )
      select 1 from below where status not in ('completed', 'stopped', 'failed'))
order by h.status_at_ms, h.rid
limit :limit

-- name: prune_below
-- Its tasks, and all that it or they delegated.
with recursive family(rid) as (
    select :rid
    union all
    select run_rid from swarm_task where swarm_rid = :rid
    union all
    select h.rid from family f join run_head h on h.parent_rid = f.rid
)
select rid from family where rid <> :rid

-- name: prune_message
delete from message where rid = :rid

-- name: prune_receipt
delete from receipt where rid = :rid

-- name: prune_journal
delete from journal where rid = :rid

-- name: prune_inbox
delete from inbox where rid = :rid

-- name: prune_item
delete from pending_item where rid = :rid

-- name: prune_unclean_end
delete from unclean_end where rid = :rid

-- name: prune_tag
delete from run_tag where rid = :rid

-- name: prune_budget
delete from budget_scope where key = :scope_key

-- name: prune_own_history
delete from budget_history where scope_key = :scope_key

-- name: prune_history
-- What they used stays as sums, except in scopes that go with them.
insert into budget_history (scope_key, bucket_at_ms, model, calls, tokens, micros, input_tokens, output_tokens, cached_tokens,
                            reasoning_tokens)
select r.scope_key, r.at_ms / coalesce(b.window_ms / b.buckets, 3600000) * coalesce(b.window_ms / b.buckets, 3600000), r.model,
       count(*), sum(r.used_tokens), sum(r.used_micros), sum(r.input_tokens), sum(r.output_tokens), sum(r.cached_tokens),
       sum(r.reasoning_tokens)
from reservation r join budget_scope b on b.key = r.scope_key
where r.rid = :rid and r.status = 'settled' and r.scope_key not in (select value from json_each(:scope_keys))
group by 1, 2, 3
on conflict (scope_key, bucket_at_ms, model) do update set
    calls = calls + excluded.calls, tokens = tokens + excluded.tokens, micros = micros + excluded.micros,
    input_tokens = input_tokens + excluded.input_tokens, output_tokens = output_tokens + excluded.output_tokens,
    cached_tokens = cached_tokens + excluded.cached_tokens, reasoning_tokens = reasoning_tokens + excluded.reasoning_tokens

-- name: prune_refusal
delete from refusal where rid = :rid

-- name: prune_reservation
-- Of scopes that stay, those stay that count there: holds that nobody can settle.
delete from reservation
where rid = :rid and (status in ('settled', 'released') or scope_key in (select value from json_each(:scope_keys)))

-- name: prune_swarm_edge
delete from swarm_edge where swarm_rid = :rid

-- name: prune_swarm_event
delete from swarm_event where swarm_rid = :rid

-- name: prune_swarm_task
delete from swarm_task where swarm_rid = :rid

-- name: prune_swarm
delete from swarm where rid = :rid

-- name: prune_head
delete from run_head where rid = :rid

-- name: compact_open
-- A run that has not ended, or has work after its end.
select run_id, status, parked from run_head
where rid = :rid and (status not in ('completed', 'stopped', 'failed') or parked is not null or due_at_ms is not null)

-- name: compact_requests
-- How many requests of a run ended how.
select count(distinct request_id) filter (where status = 'settled') as settled,
       count(distinct request_id) filter (where status = 'released') as released,
       count(distinct request_id) filter (where status = 'unknown') as unknown
from reservation where rid = :rid

-- name: compact_scopes
-- What is about to become sums, in each scope.
select scope_key, sum(case status when 'settled' then used_tokens else 0 end) as tokens,
       sum(case status when 'settled' then used_micros else 0 end) as micros
from reservation where rid = :rid and status in ('settled', 'released')
group by scope_key

-- name: insert_head
-- It has seen all its inputs; its items, if it has any, belong to a suspension named by its revision.
insert into run_head (rid, scope, run_id, kind, agent, queue, priority, shard, revision, version, status, phase, epoch, last_seq,
                      journal_seq, mid_step, suspension, due_at_ms, sweep_at_ms, open_items, parked, tokens, cost_micros, model_step,
                      created_at_ms, status_at_ms, input_digest, body, begun, slot_key, compactions, folded_from, folded_to, folded_step)
values (:rid, :scope, :run_id, :kind, :agent, :queue, :priority, :shard, :revision, :version, :status, :phase, :epoch, :last_seq,
        :newest_journal_seq, :mid_step, :suspension, case when :is_due then :now_ms end, case when :is_due then :now_ms end,
        :open_items, :parked, :tokens, :cost_micros, :model_step, coalesce(:created_at_ms, :now_ms), :now_ms, :digest, :body,
        :status <> 'queued', :slot_key, :compactions, :folded_from, :folded_to, :folded_step)

-- name: insert_journal
insert into journal (rid, seq, at_ms, body) values (:rid, :seq, coalesce(:at_ms, :now_ms), :body)
