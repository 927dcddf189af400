-- What operators say about everything that begins: brakes, and rates per minute.

-- name: brakes
select 'brake' as what, kind, name, reason, actor, at_ms, 0 as has_rate, null as at_a_time from brake
union all
select 'rate', kind, name, null, null, 0, calls_per_minute is not null or tokens_per_minute is not null, at_a_time
from rate where kind <> 'key'
order by 1, 2, 3

-- name: has_key_rates
select exists (select 1 from rate where kind = 'key') as has_key_rates

-- name: store_brake
insert into brake (kind, name, reason, actor, at_ms) values (:kind, :name, :reason, :actor, :now_ms)
on conflict (kind, name) do update set reason = excluded.reason, actor = excluded.actor, at_ms = excluded.at_ms

-- name: drop_brake
delete from brake where kind = :kind and name = :name returning kind

-- name: log_brake
insert into brake_act (act_id, act, kind, name, reason, actor, at_ms)
values (:act_id, :act, :kind, :name, :reason, :actor, :now_ms)
on conflict do nothing

-- name: loosen
update run_head set sweep_at_ms = :now_ms, misses = 0
where rid in (
    select h.rid from run_head h
    where h.sweep_at_ms > :now_ms and h.misses > 0
      and (:scope is null or h.scope = :scope) and (:agent is null or h.agent = :agent) and (:queue is null or h.queue = :queue)
    limit :limit)
returning rid

-- name: brake_acts
select act, kind, name, reason, actor, at_ms from brake_act order by at_ms desc, act_id limit :limit

-- name: drop_rate
delete from rate where kind = :kind and scope = :scope and name = :name

-- name: store_rate
insert into rate (kind, scope, name, calls_per_minute, tokens_per_minute, at_a_time, calls_left, tokens_left, at_ms)
values (:kind, :scope, :name, :calls, :tokens, :at_a_time, :calls_left, :tokens_left, :now_ms)
on conflict (kind, scope, name) do update set
    calls_per_minute = excluded.calls_per_minute, tokens_per_minute = excluded.tokens_per_minute,
    at_a_time = excluded.at_a_time,
    calls_left = excluded.calls_left, tokens_left = excluded.tokens_left, at_ms = excluded.at_ms

-- name: rate_row
select calls_per_minute, tokens_per_minute, calls_left, tokens_left, at_ms, shut_until_ms from rate
where kind = :kind and scope = :scope and name = :name

-- name: take_rate
update rate set calls_left = :calls_left, tokens_left = :tokens_left, at_ms = :at_ms
where kind = :kind and scope = :scope and name = :name

-- name: give_rate
update rate set tokens_left = tokens_left + :tokens where kind = :kind and scope = :scope and name = :name

-- name: shut_rate
update rate set shut_until_ms = max(coalesce(shut_until_ms, 0), :until_ms)
where kind = :kind and scope = :scope and name = :name

-- name: list_rates
select kind, scope, name, calls_per_minute, tokens_per_minute, at_a_time from rate
where :scope is null or scope in ('', :scope)
order by kind, scope, name

-- name: list_keys
select scope, key, slots, used, waiting from concurrency
where :scope is null or scope = :scope
order by scope, key
limit :limit
