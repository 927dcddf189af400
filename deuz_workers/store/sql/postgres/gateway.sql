-- Frames that readers of a run's stream were shown, and tokens of the gateway.

-- name: append_frames
-- Behind the newest, or nothing where that is another one. Of two that come at once the second violates the key, and nothing of
-- its statement stays.
with newest as (
    select coalesce(max(seq), 0) as seq from ui_frame
    where scope = %(scope)s::text and stream_id = %(stream_id)s::text
)
insert into ui_frame (scope, stream_id, seq, body)
select %(scope)s::text, %(stream_id)s::text, n.seq + f.place, f.body
from newest n, unnest(%(body)s::text[]) with ordinality as f(body, place)
where n.seq = %(after)s::bigint
returning seq;

-- name: read_frames
select seq, body from ui_frame
where scope = %(scope)s::text and stream_id = %(stream_id)s::text and seq > %(after)s::bigint
order by seq
limit %(limit)s::bigint;

-- name: last_frame
select seq, body from ui_frame
where scope = %(scope)s::text and stream_id = %(stream_id)s::text
order by seq desc
limit 1;

-- name: delete_frames
delete from ui_frame where scope = %(scope)s::text and stream_id = %(stream_id)s::text
returning seq;

-- name: add_access_token
with
-- include: clock
made as (
    insert into access_token (token_id, principal, scopes, digest, created_at, expires_at)
    select %(token_id)s::text, %(principal)s::text, %(scopes)s::text[], %(digest)s::text, c.now,
           c.now + %(expires_in_ms)s::float8 * interval '1 millisecond'
    from clock c
    on conflict (token_id) do nothing
    returning token_id
)
select token_id from made;

-- name: find_access_token
-- One that is good now.
with
-- include: clock
found as (
    select t.* from access_token t, clock c
    where t.digest = %(digest)s::text and t.revoked_at is null and (t.expires_at is null or t.expires_at > c.now)
)
select
-- include: access_token_columns
from found t;

-- name: access_tokens
select
-- include: access_token_columns
from access_token t
order by t.created_at, t.token_id;

-- name: revoke_access_token
-- The moment of the first time stays.
with
-- include: clock
revoked as (
    update access_token t set revoked_at = coalesce(t.revoked_at, c.now)
    from clock c
    where t.token_id = %(token_id)s::text
    returning t.token_id
)
select token_id from revoked;

-- part: access_token_columns
    t.token_id, t.principal, t.scopes,
    (extract(epoch from t.created_at) * 1000)::bigint as created_at_ms,
    (extract(epoch from t.expires_at) * 1000)::bigint as expires_at_ms,
    (extract(epoch from t.revoked_at) * 1000)::bigint as revoked_at_ms
