-- The end of rows, and rows that come from elsewhere: prune, compact_ledger, insert.
--
-- What `prune` and `compact_ledger` do to the rows of ended runs in the ledger is written once: requests that were settled become
-- sums in `budget_history`, which stay, and those that were released are forgotten. Locks: the topmost head, so that the two never
-- have one tree in hand, then budget scopes deepest first, then their sums by key.

-- part: family
family(rid) as (                            -- with tasks, and all that they delegated
    (select rid from chosen
     union all
     select t.run_rid from chosen c join swarm_task t on t.swarm_rid = c.rid)
    union all
    select h.rid from family f join run_head h on h.parent_rid = f.rid
),

-- part: summed
-- `doomed`: the runs. `folding`: locked scopes, in which what was settled is folded first. `gone`: scopes that go with the runs, of
-- which nothing is kept. Rows stay whose outcome is unknown, and those that are not folded in other scopes.
folded_now as (                             -- a commit that folded one of them while this waited for the scope has it
    delete from settlement x using doomed d, folding s
    where x.rid = d.rid and x.scope_key = s.key and not x.folded and x.outcome <> 'unknown'
    returning x.rid, x.request_id, x.scope_key, x.outcome, x.tokens, x.micros, x.held_tokens, x.held_micros, x.input_tokens,
              x.output_tokens, x.cached_tokens, x.reasoning_tokens
),
charged as (
    update budget_scope b set
        spent_tokens = b.spent_tokens + f.spent_tokens, spent_micros = b.spent_micros + f.spent_micros,
        held_tokens = b.held_tokens - f.held_tokens, held_micros = b.held_micros - f.held_micros,
        unknown_tokens = b.unknown_tokens - f.written_tokens, unknown_micros = b.unknown_micros - f.written_micros
    from (select scope_key,
                 coalesce(sum(tokens) filter (where outcome = 'settled'), 0) as spent_tokens,
                 coalesce(sum(micros) filter (where outcome = 'settled'), 0) as spent_micros,
                 coalesce(sum(held_tokens) filter (where outcome <> 'written_off'), 0) as held_tokens,
                 coalesce(sum(held_micros) filter (where outcome <> 'written_off'), 0) as held_micros,
                 coalesce(sum(held_tokens) filter (where outcome = 'written_off'), 0) as written_tokens,
                 coalesce(sum(held_micros) filter (where outcome = 'written_off'), 0) as written_micros
          from folded_now group by scope_key) f
    where b.key = f.scope_key
),
settlements as (
    delete from settlement x using doomed d
    where x.rid = d.rid
      and ((x.folded and x.outcome <> 'unknown') or x.scope_key in (select key from gone))
    returning x.rid, x.request_id, x.scope_key, x.outcome, x.tokens, x.micros, x.input_tokens, x.output_tokens, x.cached_tokens,
              x.reasoning_tokens
),
history as (
    insert into budget_history as h (scope_key, bucket_at, model, calls, tokens, micros, input_tokens, output_tokens, cached_tokens,
                                     reasoning_tokens)
    select x.scope_key, x.bucket_at, x.model, count(*), sum(x.tokens), sum(x.micros), sum(x.input_tokens), sum(x.output_tokens),
           sum(x.cached_tokens), sum(x.reasoning_tokens)
    from (select s.*, r.model,
                 to_timestamp(floor(extract(epoch from r.at) * 1000 / n.bucket_ms) * n.bucket_ms / 1000) as bucket_at
          from (select rid, request_id, scope_key, outcome, tokens, micros, input_tokens, output_tokens, cached_tokens,
                       reasoning_tokens from settlements
                union all
                select rid, request_id, scope_key, outcome, tokens, micros, input_tokens, output_tokens, cached_tokens,
                       reasoning_tokens from folded_now) s
          join reservation r on r.rid = s.rid and r.request_id = s.request_id and r.scope_key = s.scope_key
          join budget_scope b on b.key = s.scope_key
          cross join lateral (select coalesce(b.window_ms / b.buckets, 3600000) as bucket_ms) n
          where s.outcome = 'settled' and s.scope_key not in (select key from gone)) x
    group by x.scope_key, x.bucket_at, x.model
    order by x.scope_key, x.bucket_at, x.model
    on conflict (scope_key, bucket_at, model) do update set
        calls = h.calls + excluded.calls, tokens = h.tokens + excluded.tokens, micros = h.micros + excluded.micros,
        input_tokens = h.input_tokens + excluded.input_tokens, output_tokens = h.output_tokens + excluded.output_tokens,
        cached_tokens = h.cached_tokens + excluded.cached_tokens,
        reasoning_tokens = h.reasoning_tokens + excluded.reasoning_tokens
),
reservations as (
    delete from reservation x using doomed d
    where x.rid = d.rid
      and (x.scope_key in (select key from gone)
           or exists (select 1 from settlement t
                      where t.rid = x.rid and t.request_id = x.request_id and t.scope_key = x.scope_key
                        and t.folded and t.outcome <> 'unknown')
           or exists (select 1 from folded_now f
                      where f.rid = x.rid and f.request_id = x.request_id and f.scope_key = x.scope_key))
),

-- name: prune
-- Ended runs of their own and whole swarms whose tasks have all ended, each with all below it that was delegated and has ended too,
-- oldest change of status first. The heads are locked, which
-- reads them again, so one that was taken up again meanwhile stays; one that somebody is writing is left to a later batch. What
-- was settled in budget scopes that others share is folded first, under the lock of these, and its sums are kept; rows stay whose
-- outcome is unknown, and those in scopes with a window that are not folded.
with recursive
-- include: clock
chosen as materialized (
    select h.rid
    from run_head h, clock c
    where h.swarm_rid is null and h.parent_rid is null and h.parked is null and h.due_at is null
      and h.status = any (%(status)s::text[]) and h.status in ('completed', 'stopped', 'failed')
      and h.status_at < c.now - %(older_ms)s::float8 * interval '1 millisecond'
      and (%(scope)s::text is null or h.scope = %(scope)s::text)
      and not exists (select 1 from swarm_task t join run_head r on r.rid = t.run_rid
                      where t.swarm_rid = h.rid and r.status not in ('completed', 'stopped', 'failed'))
      and not exists (
          with recursive below(rid, status) as (
              select r.rid, r.status from run_head r
              where r.parent_rid = h.rid
                 or r.parent_rid in (select t.run_rid from swarm_task t where t.swarm_rid = h.rid)
              union all
              select r.rid, r.status from below b join run_head r on r.parent_rid = b.rid
          )
          select 1 from below where status not in ('completed', 'stopped', 'failed'))
    order by h.status_at, h.rid
    limit %(limit)s::bigint
    for update of h skip locked
),
-- include: family
doomed as materialized (select rid, 'run:' || replace(rid::text, '-', '') as scope_key from family),
gone as materialized (select scope_key as key from doomed),
messages as (delete from message x using doomed d where x.rid = d.rid),
receipts as (delete from receipt x using doomed d where x.rid = d.rid),
events as (delete from journal x using doomed d where x.rid = d.rid),
notes as (delete from inbox x using doomed d where x.rid = d.rid),
items as (delete from pending_item x using doomed d where x.rid = d.rid),
ends as (delete from unclean_end x using doomed d where x.rid = d.rid),
tags as (delete from run_tag x using doomed d where x.rid = d.rid),
chats as (delete from run_chat x using doomed d where x.rid = d.rid),
frames as (
    delete from ui_frame x using doomed d join run_head h on h.rid = d.rid
    where x.scope = h.scope and x.stream_id in (h.rid::text, h.run_id)
),
own_scopes as (delete from budget_scope x using doomed d where x.key = d.scope_key),
own_history as (delete from budget_history x using doomed d where x.scope_key = d.scope_key),
folding as materialized (
    select b.key from budget_scope b
    where b.window_ms is null and b.key not like 'run:%'
      and b.key in (select x.scope_key from settlement x join doomed d on d.rid = x.rid where not x.folded)
    order by b.key collate "C"
    for no key update
),
-- include: summed
refusals as (delete from refusal x using doomed d where x.rid = d.rid),
edges as (delete from swarm_edge x using chosen c where x.swarm_rid = c.rid),
happened as (delete from swarm_event x using chosen c where x.swarm_rid = c.rid),
tasks as (delete from swarm_task x using chosen c where x.swarm_rid = c.rid),
swarms as (delete from swarm x using chosen c where x.rid = c.rid),
heads as (delete from run_head x using doomed d where x.rid = d.rid)
select (select count(*) from chosen)::integer as runs;

-- name: compact_ledger
-- What is settled of a run and of all below it is sums from here on, in every scope that it counts in; no total changes. Without a
-- row there is no such run. `open_run_id`: of a run among them that has not ended, and then nothing was done. `again`: others folded
-- some of it while this waited for a scope, which only a statement that begins later can see.
--
-- Statuses are read without locks: a run that is taken up meanwhile makes new requests, and those that are settled never change.
with recursive
-- include: clock
above as (
    select h.rid, coalesce(h.parent_rid, h.swarm_rid) as above_rid, 0 as height
    from run_head h where h.scope = %(scope)s::text and h.run_id = %(run_id)s::text
    union all
    select h.rid, coalesce(h.parent_rid, h.swarm_rid), a.height + 1 from above a join run_head h on h.rid = a.above_rid
),
topmost as materialized (                   -- a prune passes the tree by, and one that went before left nothing here
    select h.rid from run_head h
    where h.rid = (select rid from above order by height desc limit 1)
    for no key update
),
chosen as materialized (
    select h.rid from topmost t, run_head h where h.scope = %(scope)s::text and h.run_id = %(run_id)s::text
),
-- include: family
still_open as materialized (
    select h.run_id, h.status, h.parked
    from family f join run_head h on h.rid = f.rid
    where h.status not in ('completed', 'stopped', 'failed') or h.parked is not null or h.due_at is not null
    order by h.rid in (select rid from chosen) desc, h.rid
    limit 1
),
doomed as materialized (select rid from family where not exists (select 1 from still_open)),
gone as materialized (select ''::text as key where false),
unfolded as materialized (
    select x.rid, x.request_id, x.scope_key, r.depth, b.window_ms is not null as is_windowed
    from settlement x
    join doomed d on d.rid = x.rid
    join budget_scope b on b.key = x.scope_key
    join reservation r on r.rid = x.rid and r.request_id = x.request_id and r.scope_key = x.scope_key
    where not x.folded and x.outcome <> 'unknown'
),
folding as materialized (                   -- a scope is at the greatest depth in the calls of the deepest run below it
    select b.key
    from budget_scope b join (select scope_key, max(depth) as depth from unfolded where not is_windowed group by scope_key) u
        on u.scope_key = b.key
    order by b.key like 'run:%' desc, case when b.key like 'run:%' then u.depth end, b.key collate "C"
    for no key update of b
),
-- include: summed
moved as materialized (
    select rid, request_id, scope_key, outcome, tokens, micros from settlements
    union all
    select rid, request_id, scope_key, outcome, tokens, micros from folded_now
),
left_over as materialized (                 -- calls of which a row stays, to be counted when the last one goes
    select u.rid, u.request_id from unfolded u
    where not exists (select 1 from folded_now f
                      where f.rid = u.rid and f.request_id = u.request_id and f.scope_key = u.scope_key)
),
over as materialized (
    select distinct m.rid, m.request_id, m.outcome from moved m
    where not exists (select 1 from left_over u where u.rid = m.rid and u.request_id = m.request_id)
),
audited as (
    insert into budget_audit (at, actor, action, reason, scope_key, rid, tokens, micros)
    select c.now, %(actor)s::text, 'compacted', %(reason)s::text, m.scope_key, o.rid, m.tokens, m.micros
    from (select scope_key, coalesce(sum(tokens) filter (where outcome = 'settled'), 0)::bigint as tokens,
                 coalesce(sum(micros) filter (where outcome = 'settled'), 0)::bigint as micros
          from moved group by scope_key) m, chosen o, clock c
    order by m.scope_key
)
select (select count(*) from doomed)::integer as runs,
       (select count(*) from over where outcome = 'settled')::integer as settled,
       (select count(*) from over where outcome <> 'settled')::integer as released,
       (select count(distinct (x.rid, x.request_id)) from settlement x join doomed d on d.rid = x.rid
        where x.outcome = 'unknown')::integer as unknown,
       (select count(distinct (rid, request_id)) from unfolded where is_windowed)::integer as waiting,
       (select count(*) from unfolded where not is_windowed) > (select count(*) from folded_now) as again,
       o.run_id as open_run_id, o.status as open_status, o.parked as open_parked
from chosen c left join still_open o on true;

-- name: insert_run
-- A whole run under a name of its own, or nothing where the name is taken. It has seen all its inputs; its items, if it has any,
-- belong to a suspension named by its revision.
with
-- include: clock
head as (
    insert into run_head (
        rid, scope, run_id, kind, agent, queue, priority, shard, input_digest, created_at, revision, version, status, phase, epoch,
        last_seq, journal_seq, suspension, mid_step, tokens, cost_micros, model_step, body, status_at, due_at, sweep_at, parked,
        open_items, slot_key, compactions, folded_from, folded_to, folded_step)
    select %(rid)s::uuid, %(scope)s::text, %(run_id)s::text, %(kind)s::text, %(agent)s::text, %(queue)s::text,
           %(priority)s::smallint, %(shard)s::smallint, %(digest)s::text,
           coalesce(to_timestamp(%(created_at_ms)s::float8 / 1000), c.now), %(revision)s::bigint, %(version)s::smallint,
           %(status)s::text, %(phase)s::text, %(epoch)s::integer, %(last_seq)s::integer,
           coalesce((select max(seq) from unnest(%(journal_seq)s::bigint[]) as j(seq)), 0),
           case when cardinality(%(item_id)s::text[]) > 0 then %(revision)s::bigint else 0 end, %(mid_step)s::boolean,
           %(tokens)s::bigint, %(cost_micros)s::bigint, %(model_step)s::integer, %(body)s::text, c.now,
           case when %(is_due)s::boolean then c.now end, case when %(is_due)s::boolean then c.now end, %(parked)s::text,
           (select count(*) from unnest(%(item_answer)s::text[]) as i(answer) where i.answer is null), %(slot_key)s::text,
           %(compactions)s::integer, %(folded_from)s::integer, %(folded_to)s::integer, %(folded_step)s::integer
    from clock c
    on conflict do nothing
    returning rid
),
messages as (
    insert into message (rid, epoch, seq, body)
    select h.rid, %(epoch)s::integer, m.seq, m.body
    from head h, unnest(%(message_seq)s::integer[], %(message_body)s::text[]) as m(seq, body)
),
receipts as (
    insert into receipt (rid, step, call_id, seq, stage, body)
    select h.rid, r.step, r.call_id, r.seq, r.stage, r.body
    from head h,
         unnest(%(receipt_step)s::integer[], %(receipt_call)s::text[], %(receipt_seq)s::integer[], %(receipt_stage)s::text[],
                %(receipt_body)s::text[]) as r(step, call_id, seq, stage, body)
),
events as (
    insert into journal (rid, seq, body, at)
    select h.rid, j.seq, j.body, coalesce(to_timestamp(j.at_ms::float8 / 1000), c.now)
    from head h, clock c,
         unnest(%(journal_seq)s::bigint[], %(journal_body)s::text[], %(journal_at_ms)s::bigint[]) as j(seq, body, at_ms)
),
items as (
    insert into pending_item (rid, suspension, item_id, kind, body, digest, expires_at, answer, answered_at, votes, remind_at,
                              escalate_at)
    select h.rid, %(revision)s::bigint, i.item_id, i.kind, i.body, i.digest, c.now + i.expires_in_ms * interval '1 millisecond',
           i.answer, case when i.answer is not null then c.now end, i.votes, c.now + i.remind_in_ms * interval '1 millisecond',
           c.now + i.escalate_in_ms * interval '1 millisecond'
    from head h, clock c,
         unnest(%(item_id)s::text[], %(item_kind)s::text[], %(item_body)s::text[], %(item_digest)s::text[],
                %(item_expires_in_ms)s::float8[], %(item_answer)s::text[], %(item_votes)s::text[],
                %(item_remind_in_ms)s::float8[], %(item_escalate_in_ms)s::float8[])
         as i(item_id, kind, body, digest, expires_in_ms, answer, votes, remind_in_ms, escalate_in_ms)
),
tags as (
    insert into run_tag (rid, key, value)
    select h.rid, t.key, t.value from head h, unnest(%(tag_key)s::text[], %(tag_value)s::text[]) as t(key, value)
),
budgets as (
    insert into budget_scope (key, limit_tokens, limit_micros)
    select %(budget_key)s::text, %(budget_tokens)s::bigint, %(budget_micros)s::bigint
    from head where %(budget_key)s::text is not null
    on conflict do nothing
)
select exists (select 1 from head) as created;
