-- Webhooks. Their events are found by looking at what changed status, so no commit knows of them.

-- name: add_webhook
insert into webhook (webhook_id, scope, url, events, created_at_ms, begins_at_ms, horizon_ms, due_at_ms)
values (:webhook_id, :scope, :url, :events, :now_ms, :now_ms, :now_ms, :now_ms)
on conflict (webhook_id) do nothing
returning webhook_id

-- name: webhooks
select w.webhook_id, w.scope, w.url, w.events, w.failures, w.disabled, w.created_at_ms,
       (select count(*) from webhook_delivery d where d.webhook_id = w.webhook_id and d.done_at_ms is null) as waiting,
       (select count(*) from webhook_delivery d where d.webhook_id = w.webhook_id and d.outcome = 'given-up') as given_up
from webhook w
where :scope is null or w.scope = :scope
order by w.created_at_ms, w.webhook_id

-- name: remove_webhook
delete from webhook where webhook_id = :webhook_id and (:scope is null or scope = :scope)
returning webhook_id

-- name: remove_webhook_deliveries
delete from webhook_delivery
where webhook_id = :webhook_id and not exists (select 1 from webhook w where w.webhook_id = :webhook_id)

-- name: enable_webhook
update webhook set disabled = null, failures = 0, failing_since_ms = null, due_at_ms = :now_ms
where webhook_id = :webhook_id and (:scope is null or scope = :scope)
returning webhook_id

-- name: webhook_due_now
update webhook set due_at_ms = min(due_at_ms, :now_ms)
where webhook_id = :webhook_id and (:scope is null or scope = :scope)
returning webhook_id

-- name: replay_deliveries
-- Sent again under the ids that they had, in their order.
update webhook_delivery set done_at_ms = null, outcome = null, attempts = 0
where webhook_id = :webhook_id and done_at_ms is not null
  and (:run_id is null or run_id = :run_id)
  and (:since_ms is null or at_ms >= :since_ms)
  and (:outcome is null or outcome = :outcome)
returning seq

-- name: collect_webhook_events
-- Rows of the journals of runs that changed status since the cursor. Writers come one after the other and read the time under the
-- lock, so nothing appears behind it but what a clock that was set back wrote, for which the cursor stays a second behind.
insert into webhook_delivery (webhook_id, rid, seq, scope, run_id, agent, kind, body, at_ms)
select w.webhook_id, h.rid, j.seq, h.scope, h.run_id, h.agent, h.kind, j.body, j.at_ms
from webhook w
join run_head h on h.status_at_ms >= w.horizon_ms and (w.scope = '*' or h.scope = w.scope)
join journal j on j.rid = h.rid and j.at_ms >= w.begins_at_ms and j.at_ms >= :now_ms - :keep_ms
    and j.seq > coalesce((select max(d.seq) from webhook_delivery d where d.webhook_id = w.webhook_id and d.rid = h.rid), 0)
where w.disabled is null
  and exists (select 1 from json_each(w.events) e where instr(j.body, '"type":"' || e.value || '"') > 0)
on conflict do nothing
returning seq

-- name: move_webhook_horizon
update webhook set horizon_ms = max(horizon_ms, :now_ms - 1000) where disabled is null

-- name: forget_webhook_deliveries
delete from webhook_delivery where done_at_ms < :now_ms - 2 * :keep_ms

-- name: due_webhooks
select w.webhook_id from webhook w
where w.disabled is null and w.due_at_ms <= :now_ms
  and exists (select 1 from webhook_delivery d where d.webhook_id = w.webhook_id and d.done_at_ms is null)
order by w.due_at_ms, w.webhook_id
limit :limit

-- name: claim_webhook
update webhook set due_at_ms = :now_ms + :claim_ms where webhook_id = :webhook_id

-- name: first_deliveries
select w.webhook_id, w.url, w.failures, d.rid, d.seq, d.scope, d.run_id, d.agent, d.kind, d.body, d.attempts, d.at_ms,
       :now_ms as now_ms
from webhook_delivery d join webhook w on w.webhook_id = d.webhook_id
where d.webhook_id = :webhook_id and d.done_at_ms is null
order by d.at_ms, d.rid, d.seq
limit :batch

-- name: delivery_delivered
update webhook_delivery set done_at_ms = :now_ms, outcome = 'delivered', attempts = attempts + 1
where webhook_id = :webhook_id and rid = :rid and seq = :seq

-- name: webhook_healthy
update webhook
set failures = 0, failing_since_ms = null, due_at_ms = case when :is_last then :now_ms else due_at_ms end
where webhook_id = :webhook_id
returning webhook_id

-- name: delivery_failed
update webhook_delivery
set attempts = attempts + 1,
    done_at_ms = case when attempts + 1 >= :most_attempts then :now_ms end,
    outcome = case when attempts + 1 >= :most_attempts then 'given-up' end
where webhook_id = :webhook_id and rid = :rid and seq = :seq and done_at_ms is null

-- name: webhook_failing
update webhook
set failures = failures + 1, failing_since_ms = coalesce(failing_since_ms, :now_ms), due_at_ms = :now_ms + :wait_ms,
    disabled = coalesce(:disable, case when failing_since_ms < :now_ms - :patience_ms then 'failing' end)
where webhook_id = :webhook_id
returning disabled
