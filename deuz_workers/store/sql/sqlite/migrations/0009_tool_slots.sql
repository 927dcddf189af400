alter table rate rename to rate_before;
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
    at_a_time         integer,                      -- calls of a tool that may run at a time
    primary key (kind, scope, name),
    constraint rate_kind_is_known check (kind in ('key', 'tool', 'model')),
    constraint rate_is_a_limit check (calls_per_minute > 0 or tokens_per_minute > 0 or at_a_time > 0)
) strict, without rowid;
insert into rate select *, null from rate_before;
drop table rate_before;
