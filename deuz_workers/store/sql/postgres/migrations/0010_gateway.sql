-- What readers of a run's stream were shown, and who may use the gateway.

create table ui_frame (
    scope       text        not null,
    stream_id   text        not null,                      -- the run's rid, or a name that its owner deletes
    seq         bigint      not null,                      -- dense from 1; a second writer of a number violates the key
    body        text        not null,                      -- JSON, as it is sent
    primary key (scope, stream_id, seq)
);

create table access_token (
    token_id    text        not null,
    principal   text        not null,
    scopes      text[]      not null,                      -- '*': all
    digest      text        not null,                      -- SHA-256; the token itself is nowhere
    created_at  timestamptz not null,
    expires_at  timestamptz,
    revoked_at  timestamptz,
    primary key (token_id),
    constraint digests_differ unique (digest)
);
