-- What readers of a run's stream were shown, and who may use the gateway.

create table ui_frame (
    scope     text    not null,
    stream_id text    not null,                     -- the run's rid, or a name that its owner deletes
    seq       integer not null,                     -- dense from 1
    body      text    not null,                     -- JSON, as it is sent
    primary key (scope, stream_id, seq)
) strict, without rowid;

create table access_token (
    token_id      text    not null primary key,
    principal     text    not null,
    scopes        text    not null,                 -- JSON list; '*': all
    digest        text    not null,                 -- SHA-256; the token itself is nowhere
    created_at_ms integer not null,
    expires_at_ms integer,
    revoked_at_ms integer,
    constraint digests_differ unique (digest)
) strict, without rowid;
