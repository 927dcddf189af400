-- Webhooks. Their events are found by looking at what changed status, so no commit knows of them.

-- name: add_webhook
with
-- include: clock
made as (
    insert into webhook (webhook_id, scope, url, events, created_at, begins_at, horizon, horizon_next, due_at)
    select %(webhook_id)s::text, %(scope)s::text, %(url)s::text, %(events)s::text[], c.now, c.now, c.now, c.now, c.now
    from clock c
    on conflict (webhook_id) do nothing
    returning webhook_id
)
select webhook_id from made;

-- name: webhooks
select w.webhook_id, w.scope, w.url, w.events, w.failures, w.disabled,
       (extract(epoch from w.created_at) * 1000)::bigint as created_at_ms,
       (select count(*) from webhook_delivery d where d.webhook_id = w.webhook_id and d.done_at is null) as waiting,
       (select count(*) from webhook_delivery d where d.webhook_id = w.webhook_id and d.outcome = 'given-up') as given_up
from webhook w
where %(scope)s::text is null or w.scope = %(scope)s::text
order by w.created_at, w.webhook_id;

-- name: remove_webhook
with gone as (
    delete from webhook where webhook_id = %(webhook_id)s::text and (%(scope)s::text is null or scope = %(scope)s::text)
    returning webhook_id
),
left_over as (delete from webhook_delivery d using gone g where d.webhook_id = g.webhook_id)
select webhook_id from gone;

-- name: remove_webhook_deliveries
-- Of an endpoint that is gone. The statement above does not see what a pass wrote that held the endpoint while it waited.
delete from webhook_delivery d
where d.webhook_id = %(webhook_id)s::text
  and not exists (select 1 from webhook w where w.webhook_id = %(webhook_id)s::text)
returning d.rid;

-- name: enable_webhook
with
-- include: clock
changed as (
    update webhook w set disabled = null, failures = 0, failing_since = null, due_at = c.now
    from clock c
    where w.webhook_id = %(webhook_id)s::text and (%(scope)s::text is null or w.scope = %(scope)s::text)
    returning w.webhook_id
)
select webhook_id from changed;

-- name: replay_webhook
-- Sent again under the ids that they had, in their order.
with
-- include: clock
chosen as (
    update webhook w set due_at = least(w.due_at, c.now)
    from clock c
    where w.webhook_id = %(webhook_id)s::text and (%(scope)s::text is null or w.scope = %(scope)s::text)
    returning w.webhook_id
),
again as (
    update webhook_delivery d set done_at = null, outcome = null, attempts = 0
    from chosen w
    where d.webhook_id = w.webhook_id and d.done_at is not null
      and (%(run_id)s::text is null or d.run_id = %(run_id)s::text)
      and (%(since_ms)s::bigint is null or d.at >= to_timestamp(%(since_ms)s::float8 / 1000))
      and (%(outcome)s::text is null or d.outcome = %(outcome)s::text)
    returning d.rid
)
select (select count(*) from again) as count, (select count(*) from chosen) as found;

-- name: collect_webhook_events
-- Rows of the journals of runs that changed status since the cursor. A change that is not visible yet was written by a
-- transaction that is open: `bound` lies before its time, and becomes the cursor a pass later, when whatever was open then is seen.
-- Of transactions of other roles nobody sees the time who may not read all statistics: then it lies a minute back.
with
-- include: clock
bound as (
    select least(
               c.now, min(a.xact_start),
               case when bool_or(a.query = '<insufficient privilege>') then c.now - interval '59 seconds' end
           ) - interval '1 second' as at
    from clock c
    left join pg_stat_activity a on a.datname = current_database() and a.pid <> pg_backend_pid()
    group by c.now
),
mine as (
    select w.* from webhook w where w.disabled is null order by w.horizon, w.webhook_id limit 200 for update skip locked
),
found as (
    select w.webhook_id, h.rid, j.seq, h.scope, h.run_id, h.agent, h.kind, j.body, j.at
    from mine w
    join run_head h on h.status_at >= w.horizon and (w.scope = '*' or h.scope = w.scope)
    cross join clock c
    join journal j on j.rid = h.rid and j.at >= w.begins_at and j.at >= c.now - %(keep_ms)s::float8 * interval '1 millisecond'
        and j.seq > coalesce((select max(d.seq) from webhook_delivery d where d.webhook_id = w.webhook_id and d.rid = h.rid), 0)
    where exists (select 1 from unnest(w.events) e where position('"type":"' || e || '"' in j.body) > 0)
),
added as (
    insert into webhook_delivery (webhook_id, rid, seq, scope, run_id, agent, kind, body, at)
    select f.webhook_id, f.rid, f.seq, f.scope, f.run_id, f.agent, f.kind, f.body, f.at from found f
    on conflict do nothing
    returning rid
),
moved as (
    update webhook w set horizon = m.horizon_next, horizon_next = greatest(m.horizon_next, b.at)
    from mine m, bound b
    where w.webhook_id = m.webhook_id
),
forgotten as (
    delete from webhook_delivery d
    where (d.webhook_id, d.rid, d.seq) in (
        select o.webhook_id, o.rid, o.seq from webhook_delivery o, clock c
        where o.done_at < c.now - 2 * %(keep_ms)s::float8 * interval '1 millisecond'
        limit 500
    )
)
select (select count(*) from added) as count;

-- name: take_webhook_deliveries
-- The first ones of each endpoint that is due; it is nobody else's for `claim_ms`.
with
-- include: clock
due as (
    select w.webhook_id from webhook w, clock c
    where w.disabled is null and w.due_at <= c.now
      and exists (select 1 from webhook_delivery d where d.webhook_id = w.webhook_id and d.done_at is null)
    order by w.due_at, w.webhook_id
    limit %(limit)s::bigint
    for update of w skip locked
),
claimed as (
    update webhook w set due_at = c.now + %(claim_ms)s::float8 * interval '1 millisecond'
    from due, clock c
    where w.webhook_id = due.webhook_id
    returning w.webhook_id, w.url, w.failures
)
select w.webhook_id, w.url, w.failures, d.rid, d.seq, d.scope, d.run_id, d.agent, d.kind, d.body, d.attempts,
       (extract(epoch from d.at) * 1000)::bigint as at_ms,
       (extract(epoch from c.now) * 1000)::bigint as now_ms
from claimed w
cross join clock c
cross join lateral (
    select * from webhook_delivery o
    where o.webhook_id = w.webhook_id and o.done_at is null
    order by o.at, o.rid, o.seq
    limit %(batch)s::bigint
) d
order by w.webhook_id, d.at, d.rid, d.seq;

-- name: webhook_delivered
with
-- include: clock
done as (
    update webhook_delivery d set done_at = c.now, outcome = 'delivered', attempts = d.attempts + 1
    from clock c
    where d.webhook_id = %(webhook_id)s::text and d.rid = %(rid)s::uuid and d.seq = %(seq)s::bigint
),
healthy as (
    update webhook w set failures = 0, failing_since = null, due_at = case when %(is_last)s::boolean then c.now else w.due_at end
    from clock c
    where w.webhook_id = %(webhook_id)s::text
    returning w.webhook_id
)
select webhook_id from healthy;

-- name: webhook_failed
with
-- include: clock
tried as (
    update webhook_delivery d
    set attempts = d.attempts + 1,
        done_at = case when d.attempts + 1 >= %(most_attempts)s::bigint then c.now end,
        outcome = case when d.attempts + 1 >= %(most_attempts)s::bigint then 'given-up' end
    from clock c
    where d.webhook_id = %(webhook_id)s::text and d.rid = %(rid)s::uuid and d.seq = %(seq)s::bigint and d.done_at is null
),
failing as (
    update webhook w
    set failures = w.failures + 1, failing_since = coalesce(w.failing_since, c.now),
        due_at = c.now + %(wait_ms)s::float8 * interval '1 millisecond',
        disabled = coalesce(%(disable)s::text, case
            when w.failing_since < c.now - %(patience_ms)s::float8 * interval '1 millisecond' then 'failing' end)
    from clock c
    where w.webhook_id = %(webhook_id)s::text
    returning w.disabled
)
select disabled from failing;
