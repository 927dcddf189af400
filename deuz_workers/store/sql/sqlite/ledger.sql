-- Budgets. With one writer at a time a settlement is folded into its scopes at once.

-- name: asked_before
-- What a request was answered before; a reason: refused.
select tokens, case when priced then micros end as micros, null as scope_key, null as reason
from reservation where rid = :rid and request_id = :request_id
union all
select tokens, micros, scope_key, reason from refusal where rid = :rid and request_id = :request_id
limit 1

-- name: scope_standing
-- What a scope with a row counts; in a rolling window what was used in its newest buckets.
select b.limit_tokens, b.limit_micros, b.window_ms, b.buckets, b.window_ms / b.buckets as bucket_ms, b.warn_percent, b.slices,
       case when b.window_ms is null then b.spent_tokens + b.held_tokens + b.unknown_tokens + b.granted_tokens
            else coalesce((select sum(k.tokens) from budget_bucket k where k.scope_key = b.key and k.at > n.newest - b.buckets), 0)
            end as used_tokens,
       case when b.window_ms is null then b.spent_micros + b.held_micros + b.unknown_micros + b.granted_micros
            else coalesce((select sum(k.micros) from budget_bucket k where k.scope_key = b.key and k.at > n.newest - b.buckets), 0)
            end as used_micros,
       n.newest
from budget_scope b
join (select o.key, max(:now_ms / (o.window_ms / o.buckets),
                        coalesce((select max(k.at) from budget_bucket k where k.scope_key = o.key), 0)) as newest
      from budget_scope o where o.key = :scope_key) n on n.key = b.key
where b.key = :scope_key

-- name: reserve_hold
insert into reservation (rid, request_id, scope_key, tokens, micros, at_ms, depth, priced, model)
values (:rid, :request_id, :scope_key, :tokens, coalesce(:micros, 0), max(:now_ms, coalesce(:newest * :bucket_ms, 0)), :depth,
        :micros is not null, :model)

-- name: reserve_held
update budget_scope set held_tokens = held_tokens + :tokens, held_micros = held_micros + coalesce(:micros, 0) where key = :scope_key

-- name: reserve_bucket
insert into budget_bucket (scope_key, at, tokens, micros) values (:scope_key, :newest, :tokens, coalesce(:micros, 0))
on conflict (scope_key, at) do update set tokens = tokens + excluded.tokens, micros = micros + excluded.micros

-- name: drop_buckets
delete from budget_bucket where scope_key = :scope_key and at <= :newest - :buckets

-- name: remember_refusal
insert into refusal (rid, request_id, scope_key, reason, tokens, micros, at_ms)
values (:rid, :request_id, :scope_key, :reason, :tokens, :micros, :now_ms)
on conflict do nothing

-- name: settle_buckets
-- Of the bucket in which the call was reserved, whatever the time is now.
update budget_bucket as k set
    tokens = k.tokens + case when :outcome = 'unknown' or (:outcome = 'settled' and :micros is null and r.priced) then 0
                             when :outcome = 'settled' then :tokens - r.tokens else -r.tokens end,
    micros = k.micros + case when :outcome = 'unknown' or (:outcome = 'settled' and :micros is null and r.priced) then 0
                             when :outcome = 'settled' then coalesce(:micros, 0) - r.micros else -r.micros end
from reservation r join budget_scope b on b.key = r.scope_key
where r.rid = :rid and r.request_id = :request_id and r.status = :status and b.window_ms is not null
  and k.scope_key = r.scope_key and k.at = r.at_ms / (b.window_ms / b.buckets)

-- name: settle_scopes
-- A call that was reserved in money and whose price is not known in the end is `unknown`, as one whose outcome is: the estimate
-- stays counted.
update budget_scope as b set
    held_tokens    = b.held_tokens - e.held_tokens,
    held_micros    = b.held_micros - e.held_micros,
    spent_tokens   = b.spent_tokens + case e.outcome when 'settled' then :tokens else 0 end,
    spent_micros   = b.spent_micros + case e.outcome when 'settled' then coalesce(:micros, 0) else 0 end,
    unknown_tokens = b.unknown_tokens + case e.outcome when 'unknown' then e.held_tokens else 0 end,
    unknown_micros = b.unknown_micros + case e.outcome when 'unknown' then e.held_micros else 0 end
from (select r.scope_key, r.tokens as held_tokens, r.micros as held_micros,
             case when :outcome = 'settled' and :micros is null and r.priced then 'unknown' else :outcome end as outcome
      from reservation r
      where r.rid = :rid and r.request_id = :request_id and r.status = 'held') e
where b.key = e.scope_key

-- name: settle_reservation
update reservation set
    status = case when :outcome = 'settled' and :micros is null and priced then 'unknown' else :outcome end,
    used_tokens = :tokens, used_micros = coalesce(:micros, 0), input_tokens = :input, output_tokens = :output,
    cached_tokens = :cached, reasoning_tokens = :reasoning
where rid = :rid and request_id = :request_id and status = 'held'

-- name: release_hold_scopes
update budget_scope as b set unknown_tokens = b.unknown_tokens - r.tokens, unknown_micros = b.unknown_micros - r.micros
from reservation r
where r.rid = :rid and r.request_id = :request_id and r.status = 'unknown' and b.key = r.scope_key

-- name: release_hold_rows
update reservation set status = 'released' where rid = :rid and request_id = :request_id and status = 'unknown'
returning scope_key, tokens, micros

-- name: write_audit
insert into budget_audit (at_ms, actor, action, reason, scope_key, rid, request_id, tokens, micros)
values (:now_ms, :actor, :action, :reason, :scope_key, :rid, :request_id, :tokens, :micros)

-- name: audit
-- What operators did to budgets, newest first.
select at_ms, actor, action, reason, scope_key, rid, request_id, tokens, micros
from budget_audit where :key is null or scope_key = :key
order by id desc limit :limit

-- name: scope_row
select key, slice_of, slices, window_ms, buckets, limit_tokens, limit_micros, granted_tokens, granted_micros,
       spent_tokens + held_tokens + unknown_tokens as used_tokens, spent_micros + held_micros + unknown_micros as used_micros
from budget_scope where key = :key

-- name: write_scope
-- Window, threshold and slices that are null stay as they are.
insert into budget_scope (key, limit_tokens, limit_micros, window_ms, buckets, warn_percent, slices)
values (:key, :tokens, :micros, :window_ms, :buckets, :warn_percent, coalesce(:slices, 0))
on conflict (key) do update set
    limit_tokens = excluded.limit_tokens, limit_micros = excluded.limit_micros,
    warn_percent = coalesce(excluded.warn_percent, warn_percent), slices = coalesce(:slices, slices)

-- name: open_scope
-- The row of a persistent scope at its first use. One that is there stays as it is.
insert into budget_scope (key, window_ms, buckets) values (:key, :window_ms, :buckets) on conflict (key) do nothing

-- name: cut_slice
insert into budget_scope (key, slice_of, limit_tokens, limit_micros) values (:slice_key, :key, 0, 0) on conflict (key) do nothing

-- name: shrink_slices
-- They keep what they use, which the next statement counts in the scope; where that has no limit, they have none either.
update budget_scope as s set
    limit_tokens = case when w.limit_tokens is not null
        then min(coalesce(s.limit_tokens, s.spent_tokens + s.held_tokens + s.unknown_tokens),
                 s.spent_tokens + s.held_tokens + s.unknown_tokens) end,
    limit_micros = case when w.limit_micros is not null
        then min(coalesce(s.limit_micros, s.spent_micros + s.held_micros + s.unknown_micros),
                 s.spent_micros + s.held_micros + s.unknown_micros) end
from budget_scope w
where s.slice_of = :key and w.key = :key

-- name: count_slices
update budget_scope set
    granted_tokens = (select coalesce(sum(s.limit_tokens), 0) from budget_scope s where s.slice_of = :key),
    granted_micros = (select coalesce(sum(s.limit_micros), 0) from budget_scope s where s.slice_of = :key)
where key = :key

-- name: slices_of
select slices from budget_scope where key = :key

-- name: grant_slice
update budget_scope set granted_tokens = granted_tokens + :grant_tokens, granted_micros = granted_micros + :grant_micros
where key = :key

-- name: slice_limit
update budget_scope set limit_tokens = :limit_tokens, limit_micros = :limit_micros where key = :key

-- name: balance
-- The scope row with its slices.
select b.limit_tokens, b.limit_micros, b.window_ms, b.buckets, b.warn_percent, b.slices,
       sum(p.spent_tokens) as spent_tokens, sum(p.spent_micros) as spent_micros, sum(p.held_tokens) as held_tokens,
       sum(p.held_micros) as held_micros, sum(p.unknown_tokens) as unknown_tokens, sum(p.unknown_micros) as unknown_micros,
       case when b.window_ms is not null then
           (select coalesce(sum(k.tokens), 0) from budget_bucket k
            where k.scope_key = b.key
              and k.at > max(:now_ms / (b.window_ms / b.buckets),
                             (select max(m.at) from budget_bucket m where m.scope_key = b.key)) - b.buckets) end as window_tokens,
       case when b.window_ms is not null then
           (select coalesce(sum(k.micros), 0) from budget_bucket k
            where k.scope_key = b.key
              and k.at > max(:now_ms / (b.window_ms / b.buckets),
                             (select max(m.at) from budget_bucket m where m.scope_key = b.key)) - b.buckets) end as window_micros
from budget_scope b join budget_scope p on p.key = b.key or p.slice_of = b.key
where b.key = :key
group by b.key

-- name: usage
-- What was used in a scope and its slices since a moment, by model: a bucket that the moment falls into counts whole. Buckets are
-- those of the scope's window, else hours. What pruned runs used stands in `budget_history`, by the same buckets.
with bounds as (
    select key, case when :since_ms is null then null
                     else :since_ms / coalesce(window_ms / buckets, 3600000) * coalesce(window_ms / buckets, 3600000) end as since
    from budget_scope where key = :key
),
keys as (select key from bounds union all select key from budget_scope where slice_of = :key),
used as (
    select r.model, 1 as calls, r.status, case r.status when 'settled' then r.used_tokens else r.tokens end as tokens,
           case r.status when 'settled' then r.used_micros else r.micros end as micros,
           r.input_tokens, r.output_tokens, r.cached_tokens, r.reasoning_tokens
    from bounds b join reservation r on r.scope_key in (select key from keys) and (b.since is null or r.at_ms >= b.since)
    where r.status <> 'released'
    union all
    select h.model, h.calls, 'settled', h.tokens, h.micros, h.input_tokens, h.output_tokens, h.cached_tokens, h.reasoning_tokens
    from bounds b join budget_history h on h.scope_key in (select key from keys) and (b.since is null or h.bucket_at_ms >= b.since)
)
select model, sum(calls) as calls,
       coalesce(sum(tokens) filter (where status = 'settled'), 0) as spent_tokens,
       coalesce(sum(micros) filter (where status = 'settled'), 0) as spent_micros,
       coalesce(sum(tokens) filter (where status = 'held'), 0) as held_tokens,
       coalesce(sum(micros) filter (where status = 'held'), 0) as held_micros,
       coalesce(sum(tokens) filter (where status = 'unknown'), 0) as unknown_tokens,
       coalesce(sum(micros) filter (where status = 'unknown'), 0) as unknown_micros,
       sum(input_tokens) as input_tokens, sum(output_tokens) as output_tokens, sum(cached_tokens) as cached_tokens,
       sum(reasoning_tokens) as reasoning_tokens
from used group by model order by model

-- name: holds
-- Calls whose outcome nobody knows, oldest first, each with the scopes in which its estimate is held.
select r.rid, r.request_id, min(r.tokens) as tokens, min(r.micros) as micros, min(r.at_ms) as at_ms,
       :now_ms - min(r.at_ms) as age_ms, min(r.model) as model, d.scope, d.run_id,
       (select json_group_array(k.scope_key)
        from (select scope_key from reservation
              where rid = r.rid and request_id = r.request_id and status = 'unknown' order by scope_key) k) as scope_keys
from reservation r left join run_head d on d.rid = r.rid
where r.status = 'unknown'
  and (:key is null or exists (
      select 1 from reservation k
      where k.rid = r.rid and k.request_id = r.request_id and k.status = 'unknown'
        and (k.scope_key = :key or k.scope_key in (select b.key from budget_scope b where b.slice_of = :key))))
group by r.rid, r.request_id
having min(r.at_ms) <= :now_ms - :older_ms
order by min(r.at_ms), r.rid, r.request_id
limit :limit
