-- Rolling windows, warnings, slices; refusals that are repeated, what was used by kind of token, what operators did.

alter table budget_scope
    add column window_ms bigint,
    add column buckets integer,
    add column warn_percent integer,
    add column bucket_at bigint[] not null default '{}',
    add column bucket_tokens bigint[] not null default '{}',
    add column bucket_micros bigint[] not null default '{}',
    add column slice_of text,
    add column slices integer not null default 0,
    add column granted_tokens bigint not null default 0,
    add column granted_micros bigint not null default 0,
    add constraint window_is_cut_into_buckets check (
        (window_ms is null) = (buckets is null) and (window_ms is null or (buckets >= 1 and window_ms >= buckets))),
    add constraint a_window_has_no_slices check (window_ms is null or slices = 0);
create index budget_scope_slice on budget_scope (slice_of, key) where slice_of is not null;

alter table reservation
    add column depth integer not null default 0,
    add column priced boolean not null default true,
    add column model text not null default '';
create index reservation_at on reservation using brin (at);

alter table settlement
    add column held_at timestamptz,
    add column input_tokens bigint not null default 0,
    add column output_tokens bigint not null default 0,
    add column cached_tokens bigint not null default 0,
    add column reasoning_tokens bigint not null default 0,
    drop constraint settlement_outcome_is_known,
    add constraint settlement_outcome_is_known check (outcome in ('settled', 'released', 'unknown', 'written_off'));
create index settlement_unknown on settlement (rid, request_id) where outcome = 'unknown';

create table refusal (
    rid        uuid        not null,
    request_id text        not null,
    scope_key  text        not null,
    reason     text        not null,
    tokens     bigint      not null,
    micros     bigint,
    at         timestamptz not null,
    primary key (rid, request_id)
);

create table budget_history (
    scope_key        text        not null,
    bucket_at        timestamptz not null,
    model            text        not null,
    calls            bigint      not null,
    tokens           bigint      not null,
    micros           bigint      not null,
    input_tokens     bigint      not null,
    output_tokens    bigint      not null,
    cached_tokens    bigint      not null,
    reasoning_tokens bigint      not null,
    primary key (scope_key, bucket_at, model)
);

create table budget_audit (
    id         bigint generated always as identity,
    at         timestamptz not null,
    actor      text        not null,
    action     text        not null,
    reason     text        not null,
    scope_key  text        not null,
    rid        uuid,
    request_id text,
    tokens     bigint,
    micros     bigint,
    primary key (id),
    constraint audit_action_is_known check (action in ('set', 'released'))
);
