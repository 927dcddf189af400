-- Memories.

-- part: memory_reached
-- The records that have every one of the given ids.
select i.record_id
from json_each(:ids) g join memory_id i on i.scope = :scope and i.name = g.key and i.value = g.value
group by i.record_id
having count(*) = :id_count

-- name: find_memories
-- The newest of those that have not expired.
select r.record_id, r.body, r.created_at_ms, r.updated_at_ms, r.expires_at_ms
from memory_record r
where r.scope = :scope and (r.expires_at_ms is null or r.expires_at_ms > :at_ms) and r.record_id in (
-- include: memory_reached
)
order by r.updated_at_ms desc, r.record_id
limit :limit

-- name: memory_words
-- What a record says now, and whom it is about.
select within_digest, text_digest from memory_record where scope = :scope and record_id = :record_id

-- name: same_memory
-- A record of these words that is there under another id.
select record_id from memory_record
where scope = :scope and within_digest = :within_digest and text_digest = :text_digest and record_id <> :record_id

-- name: touch_memory
update memory_record set
    operation_id = :operation_id, body = :body, updated_at_ms = :updated_at_ms, expires_at_ms = :expires_at_ms
where scope = :scope and record_id = :same_id

-- name: put_memory
insert into memory_record (scope, record_id, within_digest, text_digest, operation_id, body, created_at_ms, updated_at_ms,
                           expires_at_ms)
values (:scope, :record_id, :within_digest, :text_digest, :operation_id, :body, :created_at_ms, :updated_at_ms, :expires_at_ms)
on conflict (scope, record_id) do update set
    within_digest = excluded.within_digest, text_digest = excluded.text_digest, operation_id = excluded.operation_id,
    body = excluded.body, updated_at_ms = excluded.updated_at_ms, expires_at_ms = excluded.expires_at_ms

-- name: put_memory_id
insert into memory_id (scope, name, value, record_id) values (:scope, :name, :value, :record_id) on conflict do nothing

-- name: delete_memory
delete from memory_record where scope = :scope and record_id = :record_id

-- name: delete_memory_ids
delete from memory_id where scope = :scope and record_id = :record_id

-- name: count_memories
select count(*) as count from memory_record where scope = :scope and operation_id = :operation_id

-- name: expired_memories
select r.record_id from memory_record r
where r.scope = :scope and r.expires_at_ms <= :at_ms and r.record_id in (
-- include: memory_reached
)
