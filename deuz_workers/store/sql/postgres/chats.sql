-- Chats, and how far runs have come in writing theirs.

-- name: load_chat
select scope, revision, body from chat where chat_id = %(chat_id)s::text;

-- name: write_chat
-- A new one, or over the revision that was read. A write that is sent again after its answer got lost finds another revision.
with
-- include: clock
made as (
    insert into chat (chat_id, scope, revision, body, updated_at)
    select %(chat_id)s::text, %(scope)s::text, 1, %(body)s::text, c.now
    from clock c
    where %(expected)s::bigint is null
    on conflict (chat_id) do nothing
    returning revision
),
written as (
    update chat x set revision = x.revision + 1, body = %(body)s::text, updated_at = c.now
    from clock c
    where x.chat_id = %(chat_id)s::text and x.scope = %(scope)s::text and x.body is not null
      and x.revision = %(expected)s::bigint
    returning x.revision
)
select revision from made union all select revision from written;

-- name: save_chat
-- Whatever is there, unless it was deleted or is of another scope.
with
-- include: clock
written as (
    insert into chat as x (chat_id, scope, revision, body, updated_at)
    select %(chat_id)s::text, %(scope)s::text, 1, %(body)s::text, c.now
    from clock c
    on conflict (chat_id) do update set revision = x.revision + 1, body = excluded.body, updated_at = excluded.updated_at
        where x.scope = excluded.scope and x.body is not null
    returning x.revision
)
select revision from written;

-- name: delete_chat
with
-- include: clock
deleted as (
    update chat x set revision = x.revision + 1, body = null, updated_at = c.now
    from clock c
    where x.chat_id = %(chat_id)s::text and x.scope = %(scope)s::text and x.body is not null
    returning x.revision
)
select revision from deleted;

-- name: chat_state
select seq, body from run_chat where rid = %(rid)s::uuid;

-- name: keep_chat_state
-- The head is locked first, and everything is decided from its locked row. An answer or an input that came since the run was read
-- has made it due, and that stays.
with
-- include: clock
locked as materialized (
    select h.rid, h.revision, h.open_items, h.wake_seq, h.seen_seq, h.parked, h.status, h.due_at, h.deadline_at
    from run_head h
    where h.rid = %(rid)s::uuid
    for no key update
),
kept as (
    insert into run_chat as x (rid, seq, body)
    select l.rid, %(seq)s::bigint + 1, %(body)s::text
    from locked l
    on conflict (rid) do update set seq = excluded.seq, body = excluded.body where x.seq = %(seq)s::bigint
    returning x.rid
),
asked as (
    select l.rid,
           case when l.status = 'suspended' then least(a.at, l.deadline_at) else a.at end as due_at
    from kept k join locked l on l.rid = k.rid, clock c,
         lateral (select c.now + %(due_in_ms)s::float8 * interval '1 millisecond' as at) a
    where l.revision = %(revision)s::bigint and l.open_items = %(open_items)s::integer and l.wake_seq = %(wake_seq)s::bigint
      and l.parked is null and l.status in ('suspended', 'completed', 'stopped', 'failed')
),
moved as (
    update run_head h set
        due_at   = a.due_at,
        sweep_at = case when a.due_at <= c.now then h.sweep_at else a.due_at end,
        ripe     = h.ripe and a.due_at <= c.now and a.due_at is not null
    from asked a, clock c
    where h.rid = a.rid
)
select k.rid is not null as kept,
       l.parked is null and (coalesce(case when a.rid is not null then a.due_at else l.due_at end <= c.now, false)
                             or (l.status not in ('completed', 'stopped', 'failed') and l.wake_seq > l.seen_seq)) as due
from clock c cross join locked l
left join kept k on k.rid = l.rid
left join asked a on a.rid = l.rid;

-- name: all_messages
select epoch, seq, body from message
where rid = %(rid)s::uuid and seq >= 0
order by epoch, seq;
