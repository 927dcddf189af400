-- Subscriptions to the ends and waits of runs, and what was or is to be sent to them.

create table webhook (
    webhook_id  text        not null,
    scope       text        not null,                      -- '*': all
    url         text        not null,
    events      text[]      not null,                      -- types of journal rows
    created_at  timestamptz not null,
    begins_at   timestamptz not null,                      -- journal rows before it are not its
    horizon     timestamptz not null,                      -- the cursor: changes of status before it were collected
    horizon_next timestamptz not null,                     -- where the next pass but one begins
    due_at      timestamptz not null,                      -- back-off, and how long whoever sends has for it
    failures    integer     not null default 0,            -- in a row
    failing_since timestamptz,
    disabled    text,                                      -- null, or why nothing is sent
    primary key (webhook_id)
);

create table webhook_delivery (
    webhook_id  text        not null,
    rid         uuid        not null,
    seq         bigint      not null,                      -- of the journal row, dense per run
    scope       text        not null,
    run_id      text        not null,
    agent       text        not null,
    kind        text        not null,
    body        text        not null,                      -- of the journal row
    at          timestamptz not null,                      -- of the journal row
    attempts    integer     not null default 0,
    done_at     timestamptz,
    outcome     text,
    primary key (webhook_id, rid, seq),
    constraint outcome_is_known check (outcome in ('delivered', 'given-up')),
    constraint done_has_an_outcome check ((done_at is null) = (outcome is null))
);
create index webhook_delivery_waiting on webhook_delivery (webhook_id, at, rid, seq) where done_at is null;
create index webhook_delivery_done on webhook_delivery (done_at) where done_at is not null;
