create table brake (                                -- no new effect begins of what it names
    kind   text    not null,
    name   text    not null,
    reason text,
    actor  text,
    at_ms  integer not null,
    primary key (kind, name),
    constraint brake_kind_is_known check (kind in ('scope', 'agent', 'tool', 'model', 'queue'))
) strict, without rowid;

create table brake_act (                            -- who set and lifted brakes, and why
    act_id blob    not null primary key,            -- of the call
    act    text    not null,
    kind   text    not null,
    name   text    not null,
    reason text,
    actor  text,
    at_ms  integer not null,
    constraint brake_act_is_known check (act in ('set', 'lifted'))
) strict, without rowid;

create table rate (                                 -- how much may begin per minute: a bucket that fills by the clock
    kind              text    not null,
    scope             text    not null,             -- of a concurrency key; empty for tools and models
    name              text    not null,
    calls_per_minute  integer,
    tokens_per_minute integer,
    calls_left        real    not null,             -- at that time; below zero after more was taken than it held
    tokens_left       real    not null,
    at_ms             integer not null,
    shut_until_ms     integer,                      -- a provider asked to wait
    primary key (kind, scope, name),
    constraint rate_kind_is_known check (kind in ('key', 'tool', 'model')),
    constraint rate_is_a_limit check (calls_per_minute > 0 or tokens_per_minute > 0)
) strict, without rowid;
