create table brake (                                       -- no new effect begins of what it names
    kind        text        not null,
    name        text        not null,
    reason      text,
    actor       text,
    at          timestamptz not null,
    primary key (kind, name),
    constraint brake_kind_is_known check (kind in ('scope', 'agent', 'tool', 'model', 'queue'))
);

create table brake_act (                                   -- who set and lifted brakes, and why
    act_id      uuid        not null,                      -- of the call, so that one that is sent again is one act
    act         text        not null,
    kind        text        not null,
    name        text        not null,
    reason      text,
    actor       text,
    at          timestamptz not null,
    primary key (act_id),
    constraint brake_act_is_known check (act in ('set', 'lifted'))
);

create table rate (                                        -- how much may begin per minute: a bucket that fills by the clock
    kind              text             not null,
    scope             text             not null,           -- of a concurrency key; empty for tools and models
    name              text             not null,
    calls_per_minute  bigint,
    tokens_per_minute bigint,
    calls_left        double precision not null,           -- at that time; below zero after more was taken than it held
    tokens_left       double precision not null,
    at                timestamptz      not null,
    shut_until        timestamptz,                         -- a provider asked to wait
    primary key (kind, scope, name),
    constraint rate_kind_is_known check (kind in ('key', 'tool', 'model')),
    constraint rate_is_a_limit check (calls_per_minute > 0 or tokens_per_minute > 0)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200,
        autovacuum_vacuum_cost_delay = 0);
