-- Leases in Postgres, for deployments whose leases are not in Redis. Never edited; schema.sql follows.

create unlogged table lease (                              -- a row is a lease that is held, or has lapsed without a release
    key         text        not null,
    owner       text        not null,
    token       bigint      not null,
    until_at    timestamptz not null,                      -- in no index: every renewal moves it
    mark        text        not null,                      -- highest revision that any holder reported, signed
    nonce       text        not null,                      -- of the call that claimed it
    predecessor text        not null,                      -- what that call was told
    again       boolean     not null default false,        -- somebody rang meanwhile
    drain       boolean     not null default false,
    primary key (key),
    constraint predecessor_is_known check (predecessor in ('none', 'lapsed'))
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200,
        autovacuum_vacuum_cost_delay = 0);

create unlogged table lease_cancel (                       -- waits for a renewal, through releases and new holders
    key         text        not null,
    at          timestamptz not null,
    primary key (key)
);

create unlogged table lease_memory (                       -- one row: this uninterrupted memory
    only_row    boolean     not null default true,
    epoch       text        not null default gen_random_uuid()::text,
    born_at     timestamptz not null default clock_timestamp(),
    primary key (only_row),
    constraint there_is_one_memory check (only_row)
);

create sequence lease_token;                               -- logged: tokens go on growing after a crash
