-- The budget ledger within a commit: admission, settlement and folding. `may`: the commit passes but for the budget.
--
-- Scope rows are locked deepest first, persistent ones last and by key, so that the hottest comes last and no two commits wait for
-- each other; under that lock unfolded settlements are folded, whether this commit is admitted or not. An update meets the newest
-- version of a row, so none is folded twice. Settling only appends, unless the same commit reserves in that scope.
--
-- What a rolling window counts stands in arrays of the scope row itself, a bucket each: after a row-lock wait only the locked row
-- is read again, so a table of buckets would be seen as it was before the wait. A reservation counts in the bucket in which it was
-- made, whenever it is settled, and the newest bucket is never older than one that is there, whatever the clock did.
--
-- A request that was refused stays refused, and one that was admitted is admitted again without being counted; with other
-- amounts it is `request_mismatch`. `unopened`: a persistent scope that has no row yet; `sliced`: its slices are to be asked
-- (budgets.sql). Both are for the store and no answer to the commit.

-- part: ending
ending as materialized (                    -- a call reserved in money whose price is not known in the end: nobody knows
    select r.rid, r.request_id, r.scope_key, e.tokens, coalesce(e.micros, 0) as micros,
           case when e.outcome = 'settled' and e.micros is null and r.priced then 'unknown' else e.outcome end as outcome,
           r.tokens as held_tokens, r.micros as held_micros, r.at as held_at, e.input, e.output, e.cached, e.reasoning
    from may m
    join reservation r on r.rid = m.rid
    join unnest(%(settle_id)s::text[], %(settle_outcome)s::text[], %(settle_tokens)s::bigint[], %(settle_micros)s::bigint[],
                %(settle_input)s::bigint[], %(settle_output)s::bigint[], %(settle_cached)s::bigint[],
                %(settle_reasoning)s::bigint[])
         as e(request_id, outcome, tokens, micros, input, output, cached, reasoning) on e.request_id = r.request_id
    where not exists (select 1 from settlement t
                      where t.rid = r.rid and t.request_id = r.request_id and t.scope_key = r.scope_key)
),

-- part: ledger
scopes as materialized (
    select b.key, array_position(%(reserve_scope)s::text[], b.key) as depth, b.limit_tokens, b.limit_micros,
           b.spent_tokens + b.held_tokens + b.unknown_tokens + b.granted_tokens as used_tokens,
           b.spent_micros + b.held_micros + b.unknown_micros + b.granted_micros as used_micros,
           b.window_ms, b.buckets, b.window_ms / b.buckets as bucket_ms, b.bucket_at, b.bucket_tokens, b.bucket_micros,
           b.warn_percent, b.slices
    from budget_scope b
    where b.key = any (%(reserve_scope)s::text[]) and exists (select 1 from may)
    order by array_position(%(reserve_scope)s::text[], b.key)
    for no key update
),
folded as (
    update settlement t set folded = true
    from scopes s
    where t.scope_key = s.key and not t.folded
    returning t.scope_key, t.outcome, t.tokens, t.micros, t.held_tokens, t.held_micros, coalesce(t.held_at, t.at) as held_at
),
moves as materialized (                     -- how settlements change the scopes; `mine`: only if this commit is applied
    select x.scope_key, x.mine, x.held_at,
           case x.outcome when 'written_off' then 0 else -x.held_tokens end as held_tokens,
           case x.outcome when 'written_off' then 0 else -x.held_micros end as held_micros,
           case x.outcome when 'settled' then x.tokens else 0 end as spent_tokens,
           case x.outcome when 'settled' then x.micros else 0 end as spent_micros,
           case x.outcome when 'unknown' then x.held_tokens when 'written_off' then -x.held_tokens else 0 end as unknown_tokens,
           case x.outcome when 'unknown' then x.held_micros when 'written_off' then -x.held_micros else 0 end as unknown_micros
    from (select scope_key, false as mine, held_at, outcome, tokens, micros, held_tokens, held_micros from folded
          union all
          select scope_key, true, held_at, outcome, tokens, micros, held_tokens, held_micros from ending) x
),
windowed as materialized (                  -- `oldest`: what was used in this bucket or before counts no more
    select w.key, w.bucket_ms, w.bucket_at, w.bucket_tokens, w.bucket_micros, w.newest, w.newest - w.buckets as oldest
    from (select s.*, greatest(floor(extract(epoch from c.now) * 1000)::bigint / s.bucket_ms,
                               s.bucket_at[cardinality(s.bucket_at)]) as newest
          from scopes s, clock c
          where s.window_ms is not null) w
),
bucket_rows as materialized (
    select x.key, x.at, x.mine, x.tokens, x.micros
    from (select w.key, w.oldest, u.at, false as mine, u.tokens, u.micros
          from windowed w, unnest(w.bucket_at, w.bucket_tokens, w.bucket_micros) as u(at, tokens, micros)
          union all
          select w.key, w.oldest, floor(extract(epoch from m.held_at) * 1000)::bigint / w.bucket_ms, m.mine,
                 m.held_tokens + m.spent_tokens + m.unknown_tokens, m.held_micros + m.spent_micros + m.unknown_micros
          from windowed w join moves m on m.scope_key = w.key) x
    where x.at > x.oldest
),
earlier as materialized (                   -- what this request was answered before
    select r.tokens, case when r.priced then r.micros end as micros, null::text as scope_key, null::text as reason
    from may m join reservation r on r.rid = m.rid and r.request_id = %(request_id)s::text
    union all
    select f.tokens, f.micros, f.scope_key, f.reason
    from may m join refusal f on f.rid = m.rid and f.request_id = %(request_id)s::text
),
asked as materialized (                     -- what is new in this request: nothing, if it was answered before
    select case when n.is_new then %(reserve_tokens)s::bigint else 0 end                  as tokens,
           case when n.is_new then %(reserve_micros)s::bigint else 0 end                  as micros,
           n.is_new
    from (select %(request_id)s::text is not null and not exists (select 1 from earlier) as is_new) n
),
standing as materialized (                  -- what counts in each scope with this request, and what it may be
    select s.key, s.depth, s.window_ms, s.buckets, s.slices,
           least(s.limit_tokens, (%(reserve_limit_tokens)s::bigint[])[s.depth]) as limit_tokens,
           least(s.limit_micros, (%(reserve_limit_micros)s::bigint[])[s.depth]) as limit_micros,
           coalesce((%(reserve_warn)s::integer[])[s.depth], s.warn_percent, %(reserve_warn_else)s::integer) as warn_percent,
           (a.tokens + case when s.window_ms is null then s.used_tokens + coalesce(m.tokens, 0)
                            else coalesce(b.tokens, 0) end)::bigint as used_tokens,
           (coalesce(a.micros, 0) + case when s.window_ms is null then s.used_micros + coalesce(m.micros, 0)
                                         else coalesce(b.micros, 0) end)::bigint as used_micros
    from scopes s
    cross join asked a
    left join (select scope_key, sum(held_tokens + spent_tokens + unknown_tokens) as tokens,
                      sum(held_micros + spent_micros + unknown_micros) as micros
               from moves group by scope_key) m on m.scope_key = s.key
    left join (select key, sum(tokens) as tokens, sum(micros) as micros from bucket_rows group by key) b on b.key = s.key
),
refused as materialized (
    select x.key, x.reason, x.is_new
    from (
        select s.key, s.depth, true as is_new,
               case when not (%(reserve_any_window)s::boolean[])[s.depth]
                         and (s.window_ms is distinct from (%(reserve_window_ms)s::bigint[])[s.depth]
                              or s.buckets is distinct from (%(reserve_buckets)s::integer[])[s.depth]) then 'window_mismatch'
                    when s.slices > 0 and (%(reserve_limit_tokens)s::bigint[])[s.depth] is null
                         and (%(reserve_limit_micros)s::bigint[])[s.depth] is null then 'sliced'
                    when s.limit_micros is not null and a.micros is null and not %(reserve_uncounted)s::boolean
                         then 'missing_reservation'
                    when s.used_tokens > s.limit_tokens or s.used_micros > s.limit_micros then 'budget_exceeded' end as reason
        from asked a, standing s
        where a.is_new
        union all
        select k.key, k.depth, true, 'unopened'
        from asked a, unnest(%(reserve_scope)s::text[], %(reserve_named)s::boolean[]) with ordinality as k(key, named, depth)
        where a.is_new and k.named and exists (select 1 from may) and k.key not in (select key from scopes)
        union all
        select coalesce(e.scope_key, ''), 0, false,
               case when e.tokens <> %(reserve_tokens)s::bigint or e.micros is distinct from %(reserve_micros)s::bigint
                    then 'request_mismatch' else e.reason end
        from earlier e
    ) x
    where x.reason is not null
    order by x.depth
    limit 1
),
verdict as materialized (select not exists (select 1 from refused) as admitted),
new_buckets as materialized (
    select y.key, array_agg(y.at order by y.at) as at, array_agg(y.tokens order by y.at) as tokens,
           array_agg(y.micros order by y.at) as micros
    from (select x.key, x.at, sum(x.tokens)::bigint as tokens, sum(x.micros)::bigint as micros
          from (select r.key, r.at, r.tokens, r.micros from bucket_rows r, verdict v where v.admitted or not r.mine
                union all
                select w.key, w.newest, a.tokens, coalesce(a.micros, 0)
                from windowed w, asked a, verdict v where v.admitted and a.is_new) x
          group by x.key, x.at) y
    group by y.key
),
charged as (
    update budget_scope b set
        spent_tokens   = b.spent_tokens + d.spent_tokens,
        spent_micros   = b.spent_micros + d.spent_micros,
        held_tokens    = b.held_tokens + d.held_tokens,
        held_micros    = b.held_micros + d.held_micros,
        unknown_tokens = b.unknown_tokens + d.unknown_tokens,
        unknown_micros = b.unknown_micros + d.unknown_micros,
        bucket_at      = case when d.is_windowed then coalesce(n.at, '{}') else b.bucket_at end,
        bucket_tokens  = case when d.is_windowed then coalesce(n.tokens, '{}') else b.bucket_tokens end,
        bucket_micros  = case when d.is_windowed then coalesce(n.micros, '{}') else b.bucket_micros end
    from (
        select s.key, s.window_ms is not null as is_windowed,
               coalesce(sum(m.spent_tokens), 0) as spent_tokens,
               coalesce(sum(m.spent_micros), 0) as spent_micros,
               coalesce(sum(m.held_tokens), 0) + case when v.admitted then a.tokens else 0 end as held_tokens,
               coalesce(sum(m.held_micros), 0) + case when v.admitted then coalesce(a.micros, 0) else 0 end as held_micros,
               coalesce(sum(m.unknown_tokens), 0) as unknown_tokens,
               coalesce(sum(m.unknown_micros), 0) as unknown_micros
        from scopes s
        cross join asked a
        cross join verdict v
        left join moves m on m.scope_key = s.key and (v.admitted or not m.mine)
        group by s.key, s.window_ms, v.admitted, a.tokens, a.micros
    ) d
    left join new_buckets n on n.key = d.key
    where b.key = d.key
),
remembered as (
    insert into refusal (rid, request_id, scope_key, reason, tokens, micros, at)
    select m.rid, %(request_id)s::text, r.key, r.reason, %(reserve_tokens)s::bigint, %(reserve_micros)s::bigint, c.now
    from may m, refused r, clock c
    where %(reserve_remember)s::boolean and r.is_new and r.reason in ('budget_exceeded', 'missing_reservation')
    on conflict do nothing
),

-- part: ledger_writes
holds as (
    insert into reservation (rid, request_id, scope_key, tokens, micros, at, depth, priced, model)
    select g.rid, %(request_id)s::text, s.key, a.tokens, coalesce(a.micros, 0),
           greatest(c.now, to_timestamp((w.newest * w.bucket_ms)::float8 / 1000)), s.depth, a.micros is not null,
           %(reserve_model)s::text
    from gate g cross join scopes s cross join asked a cross join clock c
    left join windowed w on w.key = s.key
    where a.is_new
),
settled as (
    insert into settlement (rid, request_id, scope_key, outcome, tokens, micros, held_tokens, held_micros, folded, at, held_at,
                            input_tokens, output_tokens, cached_tokens, reasoning_tokens)
    select e.rid, e.request_id, e.scope_key, e.outcome, e.tokens, e.micros, e.held_tokens, e.held_micros,
           exists (select 1 from scopes s where s.key = e.scope_key), c.now, e.held_at, e.input, e.output, e.cached, e.reasoning
    from gate g, ending e, clock c
    on conflict do nothing
),

-- part: settled_alone
-- Without a reservation no scope is locked, so whoever reserves there next folds it.
settled as (
    insert into settlement (rid, request_id, scope_key, outcome, tokens, micros, held_tokens, held_micros, folded, at, held_at,
                            input_tokens, output_tokens, cached_tokens, reasoning_tokens)
    select e.rid, e.request_id, e.scope_key, e.outcome, e.tokens, e.micros, e.held_tokens, e.held_micros, false, c.now, e.held_at,
           e.input, e.output, e.cached, e.reasoning
    from gate g, ending e, clock c
    on conflict do nothing
),
