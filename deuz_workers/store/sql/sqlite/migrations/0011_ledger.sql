-- Rolling windows, warnings, slices; refusals that are repeated, what was used by kind of token, what operators did.

alter table budget_scope add column window_ms integer;      -- null: for life
alter table budget_scope add column buckets integer;        -- of the window
alter table budget_scope add column warn_percent integer;   -- of the limit; null: nobody is warned
alter table budget_scope add column slice_of text;          -- key of the scope that granted its limit
alter table budget_scope add column slices integer not null default 0;          -- rows `key#0` ... that are asked instead
alter table budget_scope add column granted_tokens integer not null default 0;  -- to slices: the sum of their limits
alter table budget_scope add column granted_micros integer not null default 0;
create index budget_scope_slice on budget_scope (slice_of, key) where slice_of is not null;

create table budget_bucket (                        -- what counts in a bucket of a rolling window: spent, held and unknown
    scope_key text    not null,
    at        integer not null,                     -- Unix time by the length of a bucket
    tokens    integer not null,
    micros    integer not null,
    primary key (scope_key, at)
) strict, without rowid;

alter table reservation add column depth integer not null default 0;
alter table reservation add column priced integer not null default 1;           -- 0: `micros` is 0 because no price is known
alter table reservation add column model text not null default '';
alter table reservation add column used_tokens integer not null default 0;      -- once settled
alter table reservation add column used_micros integer not null default 0;
alter table reservation add column input_tokens integer not null default 0;
alter table reservation add column output_tokens integer not null default 0;
alter table reservation add column cached_tokens integer not null default 0;
alter table reservation add column reasoning_tokens integer not null default 0;

create table refusal (                              -- a request that was refused stays refused
    rid        blob    not null,
    request_id text    not null,
    scope_key  text    not null,
    reason     text    not null,
    tokens     integer not null,                    -- asked for
    micros     integer,
    at_ms      integer not null,
    primary key (rid, request_id)
) strict, without rowid;

create table budget_history (                       -- what pruned runs used in scopes that others share
    scope_key        text    not null,
    bucket_at_ms     integer not null,              -- beginning of the bucket of the window, else of the hour
    model            text    not null,
    calls            integer not null,
    tokens           integer not null,
    micros           integer not null,
    input_tokens     integer not null,
    output_tokens    integer not null,
    cached_tokens    integer not null,
    reasoning_tokens integer not null,
    primary key (scope_key, bucket_at_ms, model)
) strict, without rowid;

create table budget_audit (                         -- what operators did to budgets
    id         integer primary key,
    at_ms      integer not null,
    actor      text    not null,
    action     text    not null,
    reason     text    not null,
    scope_key  text    not null,
    rid        blob,                                -- of the run whose hold it was
    request_id text,
    tokens     integer,
    micros     integer,
    constraint audit_action_is_known check (action in ('set', 'released'))
) strict;
