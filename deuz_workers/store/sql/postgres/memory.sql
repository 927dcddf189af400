-- Memories. `reached`: the records that have every one of the given ids.

-- part: memory_reached
reached as materialized (
    select i.record_id
    from unnest(%(id_name)s::text[], %(id_value)s::text[]) as g(name, value)
    join memory_id i on i.scope = %(scope)s::text and i.name = g.name and i.value = g.value
    group by i.record_id
    having count(*) = cardinality(%(id_name)s::text[])
),
moment as materialized (
    select coalesce(%(at_ms)s::bigint, (extract(epoch from c.now) * 1000)::bigint) as ms from clock c
),

-- name: find_memories
-- The newest of those that have not expired.
with
-- include: clock
-- include: memory_reached
found as (
    select r.record_id, r.body, r.created_at_ms, r.updated_at_ms, r.expires_at_ms
    from reached m
    join memory_record r on r.scope = %(scope)s::text and r.record_id = m.record_id
    cross join moment t
    where r.expires_at_ms is null or r.expires_at_ms > t.ms
)
select * from found order by updated_at_ms desc, record_id limit %(limit)s::bigint;

-- name: write_memories
-- `same`: a record of these words that is there under another id and is none of the given ones; it is locked, so that it is there
-- when it takes their place. Two writers of the same new words: the second violates the key and finds them when it is sent again.
-- `left_words`: a given record whose words another given one takes makes room for it first, and is put again under its own id.
with given as materialized (
    select g.*
    from unnest(%(record_id)s::text[], %(within_digest)s::text[], %(text_digest)s::text[], %(operation_id)s::text[],
                %(body)s::text[], %(created_at_ms)s::bigint[], %(updated_at_ms)s::bigint[], %(expires_at_ms)s::bigint[])
         as g(record_id, within_digest, text_digest, operation_id, body, created_at_ms, updated_at_ms, expires_at_ms)
),
same as materialized (
    select g.record_id as given_id, r.record_id
    from given g
    join memory_record r on r.scope = %(scope)s::text and r.within_digest = g.within_digest and r.text_digest = g.text_digest
    where r.record_id <> g.record_id and r.record_id not in (select record_id from given)
    order by r.record_id
    for no key update of r
),
touched as (
    update memory_record r set
        operation_id = g.operation_id, body = g.body, updated_at_ms = g.updated_at_ms, expires_at_ms = g.expires_at_ms
    from same s join given g on g.record_id = s.given_id
    where r.scope = %(scope)s::text and r.record_id = s.record_id
    returning r.record_id
),
gone as (
    delete from memory_record r using same s
    where r.scope = %(scope)s::text and r.record_id = s.given_id
),
gone_ids as (
    delete from memory_id i using same s
    where i.scope = %(scope)s::text and i.record_id = s.given_id
),
left_words as (
    delete from memory_record r using given g
    where r.scope = %(scope)s::text and r.record_id = g.record_id
      and (r.within_digest, r.text_digest) <> (g.within_digest, g.text_digest)
      and exists (select from given o where o.record_id <> g.record_id
                                        and (o.within_digest, o.text_digest) = (r.within_digest, r.text_digest))
      and g.record_id not in (select given_id from same)
    returning r.record_id
),
put as (
    insert into memory_record (scope, record_id, within_digest, text_digest, operation_id, body, created_at_ms, updated_at_ms,
                               expires_at_ms)
    select %(scope)s::text, g.record_id, g.within_digest, g.text_digest, g.operation_id, g.body, g.created_at_ms,
           g.updated_at_ms, g.expires_at_ms
    from given g
    where g.record_id not in (select given_id from same) and (select count(*) from left_words) >= 0  -- those are gone by then
    on conflict (scope, record_id) do update set
        within_digest = excluded.within_digest, text_digest = excluded.text_digest, operation_id = excluded.operation_id,
        body = excluded.body, updated_at_ms = excluded.updated_at_ms, expires_at_ms = excluded.expires_at_ms
    returning record_id
),
ids as (
    insert into memory_id (scope, name, value, record_id)
    select %(scope)s::text, i.name, i.value, i.record_id
    from unnest(%(id_record)s::text[], %(id_name)s::text[], %(id_value)s::text[]) as i(record_id, name, value)
    where i.record_id in (select record_id from put)
    on conflict do nothing
)
select (select count(*) from put) + (select count(*) from touched) as count;

-- name: delete_memories
with gone as (
    delete from memory_record where scope = %(scope)s::text and record_id = any (%(record_id)s::text[])
    returning record_id
),
gone_ids as (
    delete from memory_id where scope = %(scope)s::text and record_id = any (%(record_id)s::text[])
)
select count(*) as count from gone;

-- name: count_memories
select count(*) as count from memory_record where scope = %(scope)s::text and operation_id = %(operation_id)s::text;

-- name: delete_expired_memories
with
-- include: clock
-- include: memory_reached
gone as (
    delete from memory_record r using reached m, moment t
    where r.scope = %(scope)s::text and r.record_id = m.record_id and r.expires_at_ms <= t.ms
    returning r.record_id
),
gone_ids as (
    delete from memory_id i using gone g where i.scope = %(scope)s::text and i.record_id = g.record_id
)
select count(*) as count from gone;
