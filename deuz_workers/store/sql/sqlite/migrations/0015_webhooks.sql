-- Subscriptions to the ends and waits of runs, and what was or is to be sent to them.

create table webhook (
    webhook_id   text    not null primary key,
    scope        text    not null,                  -- '*': all
    url          text    not null,
    events       text    not null,                  -- JSON list of types of journal rows
    created_at_ms integer not null,
    begins_at_ms integer not null,                  -- journal rows before it are not its
    horizon_ms   integer not null,                  -- the cursor: changes of status before it were collected
    due_at_ms    integer not null,                  -- back-off, and how long whoever sends has for it
    failures     integer not null default 0,        -- in a row
    failing_since_ms integer,
    disabled     text                               -- null, or why nothing is sent
) strict, without rowid;

create table webhook_delivery (
    webhook_id text    not null,
    rid        blob    not null,
    seq        integer not null,                    -- of the journal row, dense per run
    scope      text    not null,
    run_id     text    not null,
    agent      text    not null,
    kind       text    not null,
    body       text    not null,                    -- of the journal row
    at_ms      integer not null,                    -- of the journal row
    attempts   integer not null default 0,
    done_at_ms integer,
    outcome    text,
    primary key (webhook_id, rid, seq),
    constraint outcome_is_known check (outcome in ('delivered', 'given-up')),
    constraint done_has_an_outcome check ((done_at_ms is null) = (outcome is null))
) strict, without rowid;
create index webhook_delivery_waiting on webhook_delivery (webhook_id, at_ms, rid, seq) where done_at_ms is null;
create index webhook_delivery_done on webhook_delivery (done_at_ms) where done_at_ms is not null;
