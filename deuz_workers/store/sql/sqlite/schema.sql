-- Runs, swarms and budgets in SQLite 3.37 or newer. Ids are UUIDs of 16 bytes (rid: UUIDv7), times Unix milliseconds by the
-- store's clock, money millionths of a US dollar, bodies the codec's plain ASCII. Columns that decide come before the bodies,
-- so that reading them follows no overflow pages.

create table run_head (
    rid               blob    not null primary key,
    scope             text    not null,
    run_id            text    not null,
    kind              text    not null,
    agent             text    not null,
    queue             text    not null,
    priority          integer not null,             -- higher first
    shard             integer not null,
    -- envelope: changes only together with revision
    revision          integer not null default 0,
    commit_id         blob,                         -- of the commit that made `revision`
    version           integer not null,             -- of the record
    status            text    not null,             -- queued -> running <-> suspended; completed, stopped and failed end it
    phase             text    not null default 'loop',
    epoch             integer not null default 0,   -- of the history
    last_seq          integer not null,             -- of the history, -1: no message
    journal_seq       integer not null default 0,
    seen_seq          integer not null default 0,   -- inputs folded in
    mid_step          integer not null default 0,   -- a model call is open or a receipt is executing
    suspension        integer,                      -- revision that made the current suspension; null: there is none
    -- schedule: changes without the revision
    due_at_ms         integer,                      -- null: only an input can wake it
    sweep_at_ms       integer,                      -- null: the sweep need not look
    wake_seq          integer not null default 0,   -- inputs that arrived
    cancel_seq        integer not null default 0,   -- place of the newest cancel note
    open_items        integer not null default 0,   -- of the current suspension
    parked            text,                         -- null, or why nobody may step it
    attempts          integer not null default 0,   -- unclean ends since the last progress
    -- what listings show and producers asked for
    deadline_at_ms    integer,
    start_before_at_ms integer,
    tokens            integer not null default 0,
    cost_micros       integer default 0,            -- null: some call had no known price
    model_step        integer not null default 0,
    swarm_rid         blob,                         -- the swarm whose task this run is
    task_id           text,
    created_at_ms     integer not null,
    status_at_ms      integer not null,             -- moved with status only
    idem_key          text,
    input_digest      text    not null,
    body              text    not null, misses integer not null default 0, begun integer not null default 0, slot_key text, slot text, compactions integer not null default 0, folded_from integer not null default 0, folded_to integer not null default 0, folded_step integer not null default 0, parent_rid blob, until_at_ms integer,
    constraint run_id_is_unique_over_all_scopes unique (run_id),
    constraint status_is_known check (status in ('queued', 'running', 'suspended', 'completed', 'stopped', 'failed')),
    constraint kind_is_known check (kind in ('agent', 'reducer', 'swarm')),
    constraint seen_never_ahead_of_wake check (seen_seq <= wake_seq),
    constraint open_items_belong_to_a_suspension check (open_items = 0 or (open_items > 0 and suspension is not null)),
    constraint only_what_waits_has_open_items check (open_items = 0 or status = 'suspended'),
    constraint parked_is_out_of_the_schedule check (parked is null or (due_at_ms is null and sweep_at_ms is null)),
    constraint a_task_has_a_swarm check ((swarm_rid is null) = (task_id is null))
) strict;
create unique index run_head_once_per_key on run_head (scope, idem_key) where idem_key is not null;
create index run_head_sweep on run_head (sweep_at_ms) where sweep_at_ms is not null;
create index run_head_slot on run_head (scope, slot_key, priority desc, created_at_ms) where slot = 'waiting';
create index run_head_begun on run_head (sweep_at_ms) where begun and sweep_at_ms is not null;
create index run_head_waiting on run_head (queue, shard, scope, priority desc, sweep_at_ms) where sweep_at_ms is not null;
create index run_head_listing on run_head (status_at_ms, rid);
create index run_head_children on run_head (parent_rid) where parent_rid is not null;

create table run_tag (
    rid   blob not null,
    key   text not null,
    value text not null,
    primary key (rid, key)
) strict, without rowid;
create index run_tag_value on run_tag (key, value);

-- Append-only, keyed by run and place.

create table message (
    rid   blob    not null,
    epoch integer not null,
    seq   integer not null,
    body  text    not null,
    primary key (rid, epoch, seq)
) strict, without rowid;

create table receipt (                              -- one row per change of stage, of a call's rows the last counts
    rid     blob    not null,
    step    integer not null,
    call_id text    not null,
    seq     integer not null,
    stage   text    not null,
    body    text    not null,
    primary key (rid, step, call_id, seq),
    constraint stage_is_known check (stage in
        ('executing', 'suspended', 'executed', 'failed', 'validation-failed', 'projection-failed', 'completed'))
) strict, without rowid;

create table journal (
    rid   blob    not null,
    seq   integer not null,                         -- 1, 2, 3 ... without a gap
    at_ms integer not null,
    body  text    not null,
    primary key (rid, seq)
) strict, without rowid;

create table unclean_end (                          -- the newest ones in a row of a run, as evidence
    rid      blob    not null,
    number   integer not null,                      -- what it raised `attempts` to
    at_ms    integer not null,
    evidence text    not null,
    primary key (rid, number)
) strict, without rowid;

create table inbox (
    rid     blob    not null,
    seq     integer not null,                       -- the number that the note raised wake_seq to
    kind    text    not null,
    note_id blob,                                   -- of the sender, so that a note sent again is written once
    body    text    not null,
    primary key (rid, seq),
    constraint kind_is_known check (kind in ('cancel', 'message', 'retry', 'reconcile', 'child', 'policy', 'verdict'))
) strict, without rowid;
create unique index inbox_once_per_note on inbox (rid, note_id) where note_id is not null;

create table pending_item (
    rid           blob    not null,
    suspension    integer not null,                 -- revision that made the suspension
    item_id       text    not null,
    kind          text    not null,
    digest        text,                             -- hex
    expires_at_ms integer,
    answered_at_ms integer,
    answer_id     blob,                             -- of the answer, so that one sent again is told from another
    answer        text,                             -- null -> the answer, once
    body          text    not null, votes text, remind_at_ms integer, escalate_at_ms integer,
    primary key (rid, suspension, item_id),
    constraint kind_is_known check (kind in ('approval', 'client_tool', 'deferral', 'child_run', 'quarantine')),
    constraint answered_when_there_is_an_answer check ((answer is null) = (answered_at_ms is null))
) strict, without rowid;

create table swarm (
    rid     blob    not null primary key,           -- of its head
    status  text    not null default 'active',      -- active -> settled, when the head is final
    slots   integer not null,
    open    integer not null,                       -- tasks that have not ended
    ready   integer not null,
    running integer not null, journal_seq integer not null default 0, total integer not null default 0, max_tasks integer, max_depth integer, max_spawn integer, cancelling integer not null default 0, draining integer not null default 0, still integer not null default 0,
    constraint status_is_known check (status in ('active', 'settled')),
    constraint at_least_one_slot check (slots >= 1),
    constraint counters_are_not_negative check (open >= 0 and ready >= 0 and running >= 0)
) strict, without rowid;
create index swarm_active on swarm (rid) where status = 'active';

create table swarm_task (
    swarm_rid     blob    not null,
    task_id       text    not null,
    run_rid       blob    not null,
    status        text    not null,                 -- pending -> ready -> running <-> suspended -> ready; the rest ends it
    waiting       integer not null,                 -- direct predecessors that have not completed
    rank          integer not null,                 -- order among the ready ones, lowest first
    started_at_ms integer,
    ended_at_ms   integer, place integer not null default 0, depth integer not null default 0, timeout_ms integer,
    primary key (swarm_rid, task_id),
    constraint waiting_is_not_negative check (waiting >= 0),
    constraint who_waits_does_not_run check (waiting = 0 or status not in ('ready', 'running', 'completed')),
    constraint status_is_known check (status in ('pending', 'ready', 'running', 'suspended', 'needs_reconciliation',
        'completed', 'failed', 'blocked', 'cancelled'))
) strict, without rowid;
create index swarm_task_by_status on swarm_task (swarm_rid, status, rank);

create table swarm_edge (
    swarm_rid blob not null,
    up        text not null,
    down      text not null, soft integer not null default 0,
    primary key (swarm_rid, up, down)
) strict, without rowid;
create index swarm_edge_down on swarm_edge (swarm_rid, down, up);

create table swarm_event (
    swarm_rid blob    not null,
    seq       integer not null,
    at_ms     integer not null,
    type      text    not null,
    task_id   text,
    detail    text,
    primary key (swarm_rid, seq)
) strict, without rowid;

-- Budgets. SQLite has one writer at a time, so a settlement is folded into its scopes at once; there is no hot row to spare.

create table concurrency (                          -- a key that runs of a scope name: how many of them may run at a time
    scope   text    not null,
    key     text    not null,
    slots   integer not null,                       -- the limit of `used`
    used    integer not null default 0,             -- runs that hold a slot
    waiting integer not null default 0,             -- runs that asked for one
    primary key (scope, key),
    constraint slots_are_counted check (slots >= 0 and used >= 0 and waiting >= 0)
) strict, without rowid;

create table budget_scope (                         -- only scopes that were given a limit
    key            text    not null primary key,
    limit_tokens   integer,
    limit_micros   integer,
    spent_tokens   integer not null default 0,
    spent_micros   integer not null default 0,
    held_tokens    integer not null default 0,
    held_micros    integer not null default 0,
    unknown_tokens integer not null default 0,
    unknown_micros integer not null default 0
, window_ms integer, buckets integer, warn_percent integer, slice_of text, slices integer not null default 0, granted_tokens integer not null default 0, granted_micros integer not null default 0) strict, without rowid;

create table reservation (                          -- one row per request and scope that had a limit
    rid        blob    not null,                    -- of the run that asked
    request_id text    not null,
    scope_key  text    not null,
    status     text    not null default 'held',     -- held -> settled, released or unknown
    tokens     integer not null,                    -- the estimate
    micros     integer not null,
    at_ms      integer not null, depth integer not null default 0, priced integer not null default 1, model text not null default '', used_tokens integer not null default 0, used_micros integer not null default 0, input_tokens integer not null default 0, output_tokens integer not null default 0, cached_tokens integer not null default 0, reasoning_tokens integer not null default 0,
    primary key (rid, request_id, scope_key),
    constraint status_is_known check (status in ('held', 'settled', 'released', 'unknown'))
) strict, without rowid;
create index reservation_unsettled on reservation (scope_key, at_ms) where status in ('held', 'unknown');

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
    at_a_time         integer,                      -- calls of a tool that may run at a time
    primary key (kind, scope, name),
    constraint rate_kind_is_known check (kind in ('key', 'tool', 'model')),
    constraint rate_is_a_limit check (calls_per_minute > 0 or tokens_per_minute > 0 or at_a_time > 0)
) strict, without rowid;

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
create index budget_scope_slice on budget_scope (slice_of, key) where slice_of is not null;

create table budget_bucket (                        -- what counts in a bucket of a rolling window: spent, held and unknown
    scope_key text    not null,
    at        integer not null,                     -- Unix time by the length of a bucket
    tokens    integer not null,
    micros    integer not null,
    primary key (scope_key, at)
) strict, without rowid;

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
    constraint audit_action_is_known check (action in ('set', 'released', 'compacted'))
) strict;

-- Memories: facts that outlive runs, by whom they are about.

create table memory_record (
    scope         text    not null,                 -- the tenant, as of runs
    record_id     text    not null,
    within_digest text    not null,                 -- of all its ids in memory_id
    text_digest   text    not null,
    operation_id  text,                             -- of the extraction that wrote it last
    body          text    not null,
    created_at_ms integer not null,                 -- times by the clock of whoever wrote it
    updated_at_ms integer not null,
    expires_at_ms integer,
    primary key (scope, record_id),
    constraint a_fact_is_kept_once unique (scope, within_digest, text_digest)
) strict, without rowid;
create index memory_record_operation on memory_record (scope, operation_id) where operation_id is not null;

create table memory_id (                            -- whom a record is about
    scope     text not null,
    name      text not null,
    value     text not null,
    record_id text not null,
    primary key (scope, name, value, record_id),
    constraint memory_id_is_known check (name in ('user_id', 'agent_id', 'run_id', 'actor_id', 'chat_id'))
) strict, without rowid;
create index memory_id_record on memory_id (scope, record_id);

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

-- Conversations that runs write for whoever goes on with them.

create table chat (
    chat_id       text    not null primary key,
    scope         text    not null,                 -- of whoever wrote it first; nobody else writes it
    revision      integer not null,                 -- raised by every write
    body          text,                             -- messages and their ids; null: it was deleted, for good
    updated_at_ms integer not null
) strict;

create table run_chat (                             -- how far a run has come in writing its chat
    rid  blob    not null primary key,
    seq  integer not null,                          -- how often it was written; a writer names the one that it read
    body text    not null
) strict, without rowid;
