-- Frames that readers of a run's stream were shown, and tokens of the gateway.

-- name: newest_frame
select coalesce(max(seq), 0) as seq from ui_frame where scope = :scope and stream_id = :stream_id

-- name: append_frame
insert into ui_frame (scope, stream_id, seq, body) values (:scope, :stream_id, :seq, :body)

-- name: read_frames
select seq, body from ui_frame
where scope = :scope and stream_id = :stream_id and seq > :after
order by seq
limit :limit

-- name: last_frame
select seq, body from ui_frame
where scope = :scope and stream_id = :stream_id
order by seq desc
limit 1

-- name: delete_frames
delete from ui_frame where scope = :scope and stream_id = :stream_id

-- name: prune_ui_frame
delete from ui_frame
where scope = (select scope from run_head where rid = :rid)
  and stream_id in (:stream_id, (select run_id from run_head where rid = :rid))

-- name: add_access_token
insert into access_token (token_id, principal, scopes, digest, created_at_ms, expires_at_ms)
values (:token_id, :principal, :scopes, :digest, :now_ms, :now_ms + :expires_in_ms)
on conflict (token_id) do nothing
returning token_id

-- name: find_access_token
-- One that is good now.
select token_id, principal, scopes, created_at_ms, expires_at_ms, revoked_at_ms from access_token
where digest = :digest and revoked_at_ms is null and (expires_at_ms is null or expires_at_ms > :now_ms)

-- name: access_tokens
select token_id, principal, scopes, created_at_ms, expires_at_ms, revoked_at_ms from access_token
order by created_at_ms, token_id

-- name: revoke_access_token
-- The moment of the first time stays.
update access_token set revoked_at_ms = coalesce(revoked_at_ms, :now_ms) where token_id = :token_id
returning token_id
