-- Budget scopes as operators and reports see them. Reservation and settlement are parts of a commit, see ledger.sql.
--
-- Slices: a scope that is too hot for one row is cut into rows `key#0`, `key#1` ... of their own, each with a limit that was granted
-- to it in advance; what was granted counts as used in the scope. Order of locks: slices by key, then what they are slices of.

-- name: set_budget
-- No row where the scope has another window; window, threshold and slices that are null stay as they are. Slices give back what they do not use, so that a lower limit is one at once.
with
-- include: clock
slice_rows as materialized (
    select b.key, b.spent_tokens + b.held_tokens + b.unknown_tokens as used_tokens, b.limit_tokens,
           b.spent_micros + b.held_micros + b.unknown_micros as used_micros, b.limit_micros
    from budget_scope b
    where b.slice_of = %(key)s::text
    order by b.key
    for no key update
),
kept as materialized (                      -- what slices have after that; of a dimension without a limit, nothing is granted
    select coalesce(sum(least(s.limit_tokens, s.used_tokens)) filter (where %(tokens)s::bigint is not null), 0)::bigint as tokens,
           coalesce(sum(least(s.limit_micros, s.used_micros)) filter (where %(micros)s::bigint is not null), 0)::bigint as micros
    from slice_rows s
),
changed as (
    insert into budget_scope (key, limit_tokens, limit_micros, window_ms, buckets, warn_percent, slices)
    select %(key)s::text, %(tokens)s::bigint, %(micros)s::bigint, %(window_ms)s::bigint, %(buckets)s::integer,
           %(warn_percent)s::integer, coalesce(%(slices)s::integer, 0)
    from kept
    on conflict (key) do update set
        limit_tokens = excluded.limit_tokens, limit_micros = excluded.limit_micros,
        warn_percent = coalesce(excluded.warn_percent, budget_scope.warn_percent),
        slices = coalesce(%(slices)s::integer, budget_scope.slices),
        granted_tokens = (select tokens from kept), granted_micros = (select micros from kept)
    where %(window_ms)s::bigint is null
          or (budget_scope.window_ms, budget_scope.buckets) = (%(window_ms)s::bigint, %(buckets)s::integer)
    returning key
),
shrunk as (
    update budget_scope b set
        limit_tokens = case when %(tokens)s::bigint is not null then least(s.limit_tokens, s.used_tokens) end,
        limit_micros = case when %(micros)s::bigint is not null then least(s.limit_micros, s.used_micros) end
    from slice_rows s, changed c
    where b.key = s.key
),
cut as (
    insert into budget_scope (key, slice_of, limit_tokens, limit_micros)
    select c.key || '#' || n, c.key, case when %(tokens)s::bigint is not null then 0 end,
           case when %(micros)s::bigint is not null then 0 end
    from changed c, generate_series(0, coalesce(%(slices)s::integer, 0) - 1) as n
    on conflict (key) do nothing
),
audited as (
    insert into budget_audit (at, actor, action, reason, scope_key, tokens, micros)
    select t.now, %(actor)s::text, 'set', %(reason)s::text, c.key, %(tokens)s::bigint, %(micros)s::bigint from changed c, clock t
)
select key from changed;

-- name: open_scope
-- The row of a persistent scope at its first use. One that is there stays as it is.
with
opened as (
    insert into budget_scope (key, window_ms, buckets)
    select %(key)s::text, %(window_ms)s::bigint, %(buckets)s::integer
    on conflict (key) do nothing
)
select 1 as none where false;

-- name: slices_of
select slices from budget_scope where key = %(key)s::text;

-- name: grow_slice
-- Grant a slice what it lacks for a reservation of `tokens` and `micros`, and for some more of them in advance: at most an even
-- share of what is left. No row where too little is left. A dimension without a limit is granted without bound.
with
slice_row as materialized (
    select s.key, s.slice_of, s.limit_tokens, s.limit_micros,
           s.spent_tokens + s.held_tokens + s.unknown_tokens as used_tokens,
           s.spent_micros + s.held_micros + s.unknown_micros as used_micros
    from budget_scope s
    where s.key = %(key)s::text and s.slice_of is not null
    for no key update
),
whole as materialized (
    select p.key, p.slices, p.limit_tokens, p.limit_micros,
           p.limit_tokens - p.spent_tokens - p.held_tokens - p.unknown_tokens - p.granted_tokens as left_tokens,
           p.limit_micros - p.spent_micros - p.held_micros - p.unknown_micros - p.granted_micros as left_micros
    from slice_row s join budget_scope p on p.key = s.slice_of
    for no key update of p
),
grant_of as materialized (
    select g.*
    from (
        select s.key, s.slice_of, w.limit_tokens, w.limit_micros, w.left_tokens, w.left_micros, n.tokens as lack_tokens,
               n.micros as lack_micros,
               case when w.limit_tokens is null then 0
                    else greatest(n.tokens, least(n.tokens + 32 * %(tokens)s::bigint, w.left_tokens / (2 * greatest(w.slices, 1)))) end
                   as tokens,
               case when w.limit_micros is null then 0
                    else greatest(n.micros, least(n.micros + 32 * %(micros)s::bigint, w.left_micros / (2 * greatest(w.slices, 1)))) end
                   as micros
        from slice_row s, whole w, lateral (
            select greatest(s.used_tokens + %(tokens)s::bigint - coalesce(s.limit_tokens, 0), 0) as tokens,
                   greatest(s.used_micros + %(micros)s::bigint - coalesce(s.limit_micros, 0), 0) as micros) n
    ) g
    where coalesce(g.lack_tokens <= g.left_tokens, true) and coalesce(g.lack_micros <= g.left_micros, true)
),
granted as (
    update budget_scope b set granted_tokens = b.granted_tokens + g.tokens, granted_micros = b.granted_micros + g.micros
    from grant_of g where b.key = g.slice_of
),
grown as (
    update budget_scope b set
        limit_tokens = case when g.limit_tokens is not null then coalesce(b.limit_tokens, 0) + g.tokens end,
        limit_micros = case when g.limit_micros is not null then coalesce(b.limit_micros, 0) + g.micros end
    from grant_of g where b.key = g.key
    returning b.key
)
select key from grown;

-- name: reclaim_slices
-- All slices give back what they do not use, after what was settled there is folded. Limits of the scope itself change under the
-- locks of its slices only (`set_budget`).
with
slice_rows as materialized (
    select b.key, b.spent_tokens, b.spent_micros, b.held_tokens, b.held_micros, b.unknown_tokens, b.unknown_micros, b.limit_tokens,
           b.limit_micros
    from budget_scope b
    where b.slice_of = %(key)s::text
    order by b.key
    for no key update
),
folded as (
    update settlement t set folded = true
    from slice_rows s
    where t.scope_key = s.key and not t.folded
    returning t.scope_key, t.outcome, t.tokens, t.micros, t.held_tokens, t.held_micros
),
after as materialized (
    select s.key, s.limit_tokens, s.limit_micros,
           s.spent_tokens + coalesce(sum(f.tokens) filter (where f.outcome = 'settled'), 0)::bigint as spent_tokens,
           s.spent_micros + coalesce(sum(f.micros) filter (where f.outcome = 'settled'), 0)::bigint as spent_micros,
           s.held_tokens - coalesce(sum(f.held_tokens) filter (where f.outcome <> 'written_off'), 0)::bigint as held_tokens,
           s.held_micros - coalesce(sum(f.held_micros) filter (where f.outcome <> 'written_off'), 0)::bigint as held_micros,
           s.unknown_tokens + coalesce(sum(case f.outcome when 'unknown' then f.held_tokens
                                                          when 'written_off' then -f.held_tokens end), 0)::bigint as unknown_tokens,
           s.unknown_micros + coalesce(sum(case f.outcome when 'unknown' then f.held_micros
                                                          when 'written_off' then -f.held_micros end), 0)::bigint as unknown_micros
    from slice_rows s left join folded f on f.scope_key = s.key
    group by s.key, s.limit_tokens, s.limit_micros, s.spent_tokens, s.spent_micros, s.held_tokens, s.held_micros, s.unknown_tokens,
             s.unknown_micros
),
limits as materialized (
    select a.key, case when a.limit_tokens is not null
                       then least(a.limit_tokens, a.spent_tokens + a.held_tokens + a.unknown_tokens) end as tokens,
           case when a.limit_micros is not null
                then least(a.limit_micros, a.spent_micros + a.held_micros + a.unknown_micros) end as micros
    from after a
),
shrunk as (
    update budget_scope b set
        spent_tokens = a.spent_tokens, spent_micros = a.spent_micros, held_tokens = a.held_tokens, held_micros = a.held_micros,
        unknown_tokens = a.unknown_tokens, unknown_micros = a.unknown_micros, limit_tokens = l.tokens, limit_micros = l.micros
    from after a join limits l on l.key = a.key
    where b.key = a.key
),
returned as (
    update budget_scope b set granted_tokens = k.tokens, granted_micros = k.micros
    from (select coalesce(sum(tokens), 0)::bigint as tokens, coalesce(sum(micros), 0)::bigint as micros from limits) k
    where b.key = %(key)s::text
)
select 1 as none where false;

-- name: balance
-- The scope row with its slices and what is not folded yet, of one snapshot. `window_*`: what counts in a rolling window now.
with
-- include: clock
scope as materialized (
    select b.*, b.window_ms / b.buckets as bucket_ms,
           greatest(floor(extract(epoch from c.now) * 1000)::bigint / (b.window_ms / b.buckets),
                    b.bucket_at[cardinality(b.bucket_at)]) - b.buckets as oldest
    from budget_scope b, clock c
    where b.key = %(key)s::text
),
parts as materialized (
    select key, spent_tokens, spent_micros, held_tokens, held_micros, unknown_tokens, unknown_micros from scope
    union all
    select s.key, s.spent_tokens, s.spent_micros, s.held_tokens, s.held_micros, s.unknown_tokens, s.unknown_micros
    from budget_scope s where s.slice_of = %(key)s::text
),
waiting as materialized (
    select t.outcome, t.tokens, t.micros, t.held_tokens, t.held_micros, coalesce(t.held_at, t.at) as held_at
    from settlement t where t.scope_key in (select key from parts) and not t.folded
),
total as (
    select sum(spent_tokens) as spent_tokens, sum(spent_micros) as spent_micros, sum(held_tokens) as held_tokens,
           sum(held_micros) as held_micros, sum(unknown_tokens) as unknown_tokens, sum(unknown_micros) as unknown_micros
    from parts
),
moved as (
    select coalesce(sum(tokens) filter (where outcome = 'settled'), 0) as spent_tokens,
           coalesce(sum(micros) filter (where outcome = 'settled'), 0) as spent_micros,
           coalesce(sum(held_tokens) filter (where outcome <> 'written_off'), 0) as ended_tokens,
           coalesce(sum(held_micros) filter (where outcome <> 'written_off'), 0) as ended_micros,
           coalesce(sum(case outcome when 'unknown' then held_tokens when 'written_off' then -held_tokens end), 0) as unknown_tokens,
           coalesce(sum(case outcome when 'unknown' then held_micros when 'written_off' then -held_micros end), 0) as unknown_micros
    from waiting
),
in_window as (
    select coalesce(sum(x.tokens), 0) as tokens, coalesce(sum(x.micros), 0) as micros
    from scope s, lateral (
        select u.at, u.tokens, u.micros from unnest(s.bucket_at, s.bucket_tokens, s.bucket_micros) as u(at, tokens, micros)
        union all
        select floor(extract(epoch from w.held_at) * 1000)::bigint / s.bucket_ms,
               case w.outcome when 'settled' then w.tokens - w.held_tokens when 'unknown' then 0 else -w.held_tokens end,
               case w.outcome when 'settled' then w.micros - w.held_micros when 'unknown' then 0 else -w.held_micros end
        from waiting w) x
    where s.window_ms is not null and x.at > s.oldest
)
select s.limit_tokens, s.limit_micros, s.window_ms, s.buckets, s.warn_percent, s.slices,
       (t.spent_tokens + m.spent_tokens)::bigint as spent_tokens, (t.spent_micros + m.spent_micros)::bigint as spent_micros,
       (t.held_tokens - m.ended_tokens)::bigint as held_tokens, (t.held_micros - m.ended_micros)::bigint as held_micros,
       (t.unknown_tokens + m.unknown_tokens)::bigint as unknown_tokens,
       (t.unknown_micros + m.unknown_micros)::bigint as unknown_micros,
       case when s.window_ms is not null then w.tokens::bigint end as window_tokens,
       case when s.window_ms is not null then w.micros::bigint end as window_micros
from scope s, total t, moved m, in_window w;

-- name: usage
-- What was used in a scope and its slices since a moment, by model: a bucket that the moment falls into counts whole. Buckets are
-- those of the scope's window, else hours. What pruned runs used stands in `budget_history`, by the same buckets.
with
bounds as materialized (
    select b.key, n.bucket_ms,
           case when %(since_ms)s::bigint is null then null
                else to_timestamp((%(since_ms)s::bigint / n.bucket_ms * n.bucket_ms)::float8 / 1000) end as since
    from budget_scope b, lateral (select coalesce(b.window_ms / b.buckets, 3600000) as bucket_ms) n
    where b.key = %(key)s::text
),
keys as materialized (
    select key from bounds
    union all
    select key from budget_scope where slice_of = %(key)s::text
),
rows as (
    select r.model, 1::bigint as calls, coalesce(t.outcome, 'held') as outcome,
           case t.outcome when 'settled' then t.tokens else r.tokens end as tokens,
           case t.outcome when 'settled' then t.micros else r.micros end as micros,
           coalesce(t.input_tokens, 0) as input_tokens, coalesce(t.output_tokens, 0) as output_tokens,
           coalesce(t.cached_tokens, 0) as cached_tokens, coalesce(t.reasoning_tokens, 0) as reasoning_tokens
    from bounds b
    join reservation r on r.scope_key in (select key from keys) and (b.since is null or r.at >= b.since)
    left join settlement t on t.rid = r.rid and t.request_id = r.request_id and t.scope_key = r.scope_key
    union all
    select h.model, h.calls, 'settled', h.tokens, h.micros, h.input_tokens, h.output_tokens, h.cached_tokens, h.reasoning_tokens
    from bounds b
    join budget_history h on h.scope_key in (select key from keys) and (b.since is null or h.bucket_at >= b.since)
)
select model, sum(calls)::bigint as calls,
       coalesce(sum(tokens) filter (where outcome = 'settled'), 0)::bigint as spent_tokens,
       coalesce(sum(micros) filter (where outcome = 'settled'), 0)::bigint as spent_micros,
       coalesce(sum(tokens) filter (where outcome = 'held'), 0)::bigint as held_tokens,
       coalesce(sum(micros) filter (where outcome = 'held'), 0)::bigint as held_micros,
       coalesce(sum(tokens) filter (where outcome = 'unknown'), 0)::bigint as unknown_tokens,
       coalesce(sum(micros) filter (where outcome = 'unknown'), 0)::bigint as unknown_micros,
       sum(input_tokens)::bigint as input_tokens, sum(output_tokens)::bigint as output_tokens,
       sum(cached_tokens)::bigint as cached_tokens, sum(reasoning_tokens)::bigint as reasoning_tokens
from rows
where outcome in ('settled', 'held', 'unknown')
group by model
order by model;

-- name: holds
-- Calls whose outcome nobody knows, oldest first, each with the scopes in which its estimate is held.
with
-- include: clock
chosen as (
    select t.rid, t.request_id, min(t.held_tokens) as tokens, min(t.held_micros) as micros, min(coalesce(t.held_at, t.at)) as at,
           min(t.at) as unknown_at, array_agg(t.scope_key order by t.scope_key) as scope_keys
    from settlement t
    where t.outcome = 'unknown'
      and (%(key)s::text is null
           or exists (select 1 from settlement k
                      where k.rid = t.rid and k.request_id = t.request_id and k.outcome = 'unknown'
                        and (k.scope_key = %(key)s::text
                             or k.scope_key in (select b.key from budget_scope b where b.slice_of = %(key)s::text))))
    group by t.rid, t.request_id
)
select h.rid, h.request_id, h.tokens, h.micros, h.scope_keys,
       floor(extract(epoch from h.at) * 1000)::bigint as at_ms,
       floor(extract(epoch from c.now - h.at) * 1000)::bigint as age_ms,
       coalesce(r.model, '') as model, d.scope, d.run_id
from chosen h
cross join clock c
left join lateral (select model from reservation r where r.rid = h.rid and r.request_id = h.request_id limit 1) r on true
left join run_head d on d.rid = h.rid
where h.at <= c.now - %(older_ms)s::float8 * interval '1 millisecond'
order by h.at, h.rid, h.request_id
limit %(limit)s::bigint;

-- name: release_hold
-- Once: what was unknown is free, and who freed it is written down. Whoever next reserves in its scopes folds it.
with
-- include: clock
released as (
    update settlement t set outcome = case when t.folded then 'written_off' else 'released' end, folded = false
    where t.rid = %(rid)s::uuid and t.request_id = %(request_id)s::text and t.outcome = 'unknown'
    returning t.scope_key, t.held_tokens, t.held_micros
),
audited as (
    insert into budget_audit (at, actor, action, reason, scope_key, rid, request_id, tokens, micros)
    select c.now, %(actor)s::text, 'released', %(reason)s::text, r.scope_key, %(rid)s::uuid, %(request_id)s::text, r.held_tokens,
           r.held_micros
    from released r, clock c
)
select scope_key, held_tokens as tokens, held_micros as micros from released order by scope_key;

-- name: audit
-- What operators did to budgets, newest first.
select floor(extract(epoch from a.at) * 1000)::bigint as at_ms, a.actor, a.action, a.reason, a.scope_key, a.rid, a.request_id,
       a.tokens, a.micros
from budget_audit a
where %(key)s::text is null or a.scope_key = %(key)s::text
order by a.id desc
limit %(limit)s::bigint;
