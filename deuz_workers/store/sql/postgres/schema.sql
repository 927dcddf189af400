-- What all migrations together make (a test compares). Postgres 15 and later.
-- Append-only tables begin with rid (a UUIDv7) in their key, so that they can become range partitions by rid later; they are
-- plain tables now. Bodies are text of the codec, never jsonb. Times are the database's.

create table run_head (
    rid             uuid        not null,
    scope           text        not null,
    run_id          text        not null,
    kind            text        not null,
    agent           text        not null,
    queue           text        not null,
    priority        smallint    not null,
    shard           smallint    not null,                  -- a hash of the scope, constant for life
    swarm_rid       uuid,                                  -- a swarm task's: head of its swarm
    task_id         text,
    idem_key        text,
    input_digest    text        not null,
    created_at      timestamptz not null,
    deadline_at     timestamptz,
    start_before_at timestamptz,
    -- envelope: changes only together with revision
    revision        bigint      not null default 0,
    commit_id       uuid,                                  -- of the commit that made `revision`
    version         smallint    not null,                  -- of the record
    status          text        not null default 'queued',
    phase           text        not null default 'loop',
    epoch           integer     not null default 0,        -- of the history
    last_seq        integer     not null,                  -- of the history, -1: empty
    journal_seq     bigint      not null default 0,
    seen_seq        bigint      not null default 0,        -- inputs folded in
    suspension      bigint      not null default 0,        -- revision that listed the current items, 0: none
    mid_step        boolean     not null default false,
    tokens          bigint      not null default 0,
    cost_micros     bigint               default 0,        -- null: some price is not known
    model_step      integer     not null default 0,
    body            text        not null,                  -- the small rest of the envelope
    status_at       timestamptz not null,                  -- listings sort by this: moved with status only
    -- schedule: changes without the revision
    due_at          timestamptz,
    wake_seq        bigint      not null default 0,        -- inputs that arrived
    cancel_seq      bigint      not null default 0,        -- place of the newest cancel note; unseen while > seen_seq
    open_items      integer     not null default 0,        -- of the current suspension
    parked          text,                                  -- null, or why nobody may step it
    sweep_at        timestamptz,                           -- indexed; null: only an input can wake it
    attempts        smallint    not null default 0,        -- unclean ends since the last progress
    ripe            boolean     not null default false,    -- its time has come, nobody rang: it waits for a place in its queue
    misses          smallint    not null default 0,        -- looks in a row that found nobody who can run it
    slot_key        text,                                  -- concurrency key, constant for life
    slot            text,                                  -- of that key: null, asked for, or held
    compactions     integer     not null default 0,        -- of this epoch: the record of the newest is message -n
    folded_from     integer     not null default 0,
    folded_to       integer     not null default 0,        -- messages from folded_from to before it need not be read
    folded_step     integer     not null default 0,        -- receipts of turns below need not be read
    parent_rid      uuid,                                  -- the run that delegated this one, constant for life
    until_at        timestamptz,                           -- of a task that has a slot: when its attempt is over
    primary key (rid),
    constraint run_id_is_unique unique (run_id),           -- one store, one name; the scope only identifies
    constraint idempotency_key_is_unique_per_scope unique (scope, idem_key),
    constraint kind_is_known check (kind in ('agent', 'reducer', 'swarm')),
    constraint status_is_known check (status in (
        'queued',       -- to running (first step), stopped, failed
        'running',      -- to suspended, completed, stopped, failed
        'suspended',    -- to running, completed, stopped, failed
        'completed',    -- final
        'stopped',      -- final
        'failed'        -- final but for an explicit retry: to running
    )),
    constraint phase_is_known check (phase in ('loop', 'finalizing', 'extracting')),
    constraint seen_never_ahead_of_wake check (seen_seq <= wake_seq),
    constraint final_has_no_open_items check (status not in ('completed', 'stopped', 'failed') or open_items = 0),
    constraint task_has_a_swarm check ((swarm_rid is null) = (task_id is null)),
    constraint parked_is_not_swept check (parked is null or sweep_at is null),
    constraint ripe_is_swept check (not ripe or sweep_at is not null),
    constraint slot_is_known check (slot in ('waiting', 'held'))
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200,
        autovacuum_vacuum_cost_delay = 0);
-- Where the sweep looks: runs that have begun, runs that have not, and those of both that wait for a place, by scope. A run at
-- work moves none of these columns (`sweep_at` once in half a TTL), so its commits touch no index.
create index run_head_sweep on run_head (sweep_at) where sweep_at is not null and not ripe and status <> 'queued';
create index run_head_start on run_head (sweep_at) where sweep_at is not null and not ripe and status = 'queued';
create index run_head_ripe on run_head (queue, shard, scope, (-priority), (status = 'queued'), sweep_at) where ripe;
create index run_head_slot on run_head (scope, slot_key, (-priority), created_at) where slot = 'waiting';
create index run_head_running on run_head (queue, scope) where status = 'running';
create index run_head_listing on run_head (status_at desc, rid desc);
create index run_head_children on run_head (parent_rid) where parent_rid is not null;

create table run_tag (
    rid     uuid not null,
    key     text not null,
    value   text not null,
    primary key (rid, key)
);
create index run_tag_value on run_tag (key, value, rid);

create table message (
    rid     uuid    not null,
    epoch   integer not null,
    seq     integer not null,
    body    text    not null,
    primary key (rid, epoch, seq)
);

create table receipt (                                     -- one row per change of stage, the newest counts
    rid     uuid    not null,
    step    integer not null,
    call_id text    not null,
    seq     integer not null,
    stage   text    not null,
    body    text    not null,
    primary key (rid, step, call_id, seq),
    constraint stage_is_known check (stage in (
        'executing', 'suspended', 'executed', 'failed', 'validation-failed', 'projection-failed', 'completed'))
);

create table journal (
    rid     uuid        not null,
    seq     bigint      not null,
    body    text        not null,
    at      timestamptz not null,
    primary key (rid, seq)
);

create table unclean_end (                                 -- the newest ones in a row of a run, as evidence
    rid      uuid        not null,
    number   integer     not null,                         -- what it raised `attempts` to
    at       timestamptz not null,
    evidence text        not null,
    primary key (rid, number)
);

create table inbox (
    rid     uuid   not null,
    seq     bigint not null,                               -- the number that its writer raised wake_seq to
    kind    text   not null,
    body    text   not null,
    note_id uuid,                                          -- of an outsider's note: finds it again when the answer got lost
    primary key (rid, seq),
    constraint note_is_written_once unique (rid, note_id),
    constraint note_kind_is_known check (kind in ('cancel', 'message', 'retry', 'reconcile', 'child', 'policy', 'verdict'))
);

create table pending_item (
    rid         uuid   not null,
    suspension  bigint not null,                           -- the current one while equal to the head's
    item_id     text   not null,
    kind        text   not null,
    body        text   not null,
    digest      text,
    expires_at  timestamptz,
    answer      text,                                      -- null: open. Set once
    answer_id   uuid,
    answered_at timestamptz,
    votes       text,                                      -- of an item that needs several people, until they are enough
    remind_at   timestamptz,
    escalate_at timestamptz,
    primary key (rid, suspension, item_id),
    constraint item_kind_is_known check (kind in ('approval', 'client_tool', 'deferral', 'child_run', 'quarantine'))
);

create table swarm (
    rid         uuid    not null,
    status      text    not null default 'active',         -- settled once its head is final
    slots       integer not null,                          -- the limit of `running`
    open        integer not null,                          -- tasks that have not ended
    ready       integer not null,
    running     integer not null default 0,
    journal_seq bigint  not null default 0,                -- of swarm_event
    total       integer not null default 0,                -- tasks that it has, ended ones too
    max_tasks   integer,                                   -- null: tasks create none
    max_depth   integer,
    max_spawn   integer,
    cancelling  boolean not null default false,            -- somebody asked for its end: no slot is filled
    draining    boolean not null default false,            -- somebody asked that no task begins
    still       boolean not null default false,            -- its journal says that nothing can run before somebody answers
    primary key (rid),
    constraint swarm_status_is_known check (status in ('active', 'settled')),
    constraint counters_are_not_negative check (open >= 0 and ready >= 0 and running >= 0)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200,
        autovacuum_vacuum_cost_delay = 0);
create index swarm_active on swarm (rid) where status = 'active';

create table swarm_task (
    swarm_rid   uuid    not null,
    task_id     text    not null,
    run_rid     uuid    not null,
    status      text    not null,
    waiting     integer not null,                          -- upstream tasks that have not completed
    rank        bigint  not null,                          -- order among the ready ones
    downstream  integer not null,                          -- dependents; whoever adds an edge raises it under this row's lock
    started_at  timestamptz,                               -- first slot
    ended_at    timestamptz,
    place       integer not null default 0,                -- among the tasks of the swarm, as they were created
    depth       integer not null default 0,                -- tasks above it, each of which created the next
    timeout_ms  bigint,                                    -- of one attempt
    primary key (swarm_rid, task_id),
    constraint task_status_is_known check (status in (
        'pending',              -- to ready (the last upstream task completed), blocked, cancelled
        'ready',                -- to running (a slot), suspended, cancelled
        'running',              -- to suspended, needs_reconciliation, completed, failed, cancelled
        'suspended',            -- to ready (answered), completed, failed, cancelled
        'completed', 'failed', 'blocked', 'cancelled',
        'needs_reconciliation'  -- to ready (retried or reconciled), completed, failed, cancelled
    )),
    constraint waiting_is_not_negative check (waiting >= 0)
) with (fillfactor = 70);
create index swarm_task_ready on swarm_task (swarm_rid, (started_at is null), rank) where status = 'ready';

create table swarm_edge (
    swarm_rid   uuid not null,
    up          text not null,
    down        text not null,
    soft        boolean not null default false,            -- waits for any end of `up`; a hard one for its completion
    primary key (swarm_rid, up, down)
);
create index swarm_edge_down on swarm_edge (swarm_rid, down);

create table swarm_event (                                 -- the journal of a swarm, dense
    swarm_rid uuid        not null,
    seq       bigint      not null,
    type      text        not null,
    task_id   text,
    detail    text,                                        -- JSON
    at        timestamptz not null,
    primary key (swarm_rid, seq)
);

create table concurrency (                                 -- a key that runs of a scope name: how many of them may run at a time
    scope   text    not null,
    key     text    not null,
    slots   integer not null,                              -- the limit of `used`
    used    integer not null default 0,                    -- runs that hold a slot
    waiting integer not null default 0,                    -- runs that asked for one
    primary key (scope, key),
    constraint slots_are_counted check (slots >= 0 and used >= 0 and waiting >= 0)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200,
        autovacuum_vacuum_cost_delay = 0);

create table budget_scope (                                -- only scopes with a limit: the rows that reservations lock
    key             text   not null,
    limit_tokens    bigint,
    limit_micros    bigint,
    spent_tokens    bigint not null default 0,
    spent_micros    bigint not null default 0,
    held_tokens     bigint not null default 0,             -- reserved and not settled, as far as folded
    held_micros     bigint not null default 0,
    unknown_tokens  bigint not null default 0,             -- estimates of calls whose outcome nobody knows: stay counted
    unknown_micros  bigint not null default 0,
    window_ms       bigint,                                -- null: for life
    buckets         integer,                               -- of the window
    warn_percent    integer,                               -- of the limit; null: nobody is warned
    bucket_at       bigint[] not null default '{}',        -- number of the bucket: Unix time by its length, in order
    bucket_tokens   bigint[] not null default '{}',        -- what counts in it: spent, held and unknown
    bucket_micros   bigint[] not null default '{}',
    slice_of        text,                                  -- key of the scope that granted its limit
    slices          integer not null default 0,            -- rows `key#0` ... that are asked instead
    granted_tokens  bigint not null default 0,             -- to slices: the sum of their limits
    granted_micros  bigint not null default 0,
    primary key (key),
    constraint window_is_cut_into_buckets check (
        (window_ms is null) = (buckets is null) and (window_ms is null or (buckets >= 1 and window_ms >= buckets))),
    constraint a_window_has_no_slices check (window_ms is null or slices = 0)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200,
        autovacuum_vacuum_cost_delay = 0);
create index budget_scope_slice on budget_scope (slice_of, key) where slice_of is not null;

create table reservation (                                 -- one row per request and scope that had a limit
    rid         uuid        not null,
    request_id  text        not null,
    scope_key   text        not null,
    tokens      bigint      not null,
    micros      bigint      not null,
    at          timestamptz not null,
    depth       integer     not null default 0,            -- place of the scope in the order of locks
    priced      boolean     not null default true,         -- false: `micros` is 0 because no price is known
    model       text        not null default '',
    primary key (rid, request_id, scope_key)
);
create index reservation_at on reservation using brin (at);

create table settlement (                                  -- how a reservation ended
    rid         uuid        not null,
    request_id  text        not null,
    scope_key   text        not null,
    outcome     text        not null,
    tokens      bigint      not null,                      -- used
    micros      bigint      not null,
    held_tokens bigint      not null,                      -- reserved before
    held_micros bigint      not null,
    folded      boolean     not null,                      -- the scope row counts it
    at          timestamptz not null,
    held_at     timestamptz,                               -- when it was reserved
    input_tokens     bigint not null default 0,            -- used, by kind
    output_tokens    bigint not null default 0,
    cached_tokens    bigint not null default 0,
    reasoning_tokens bigint not null default 0,
    primary key (rid, request_id, scope_key),
    constraint settlement_outcome_is_known check (outcome in (
        'settled', 'released',
        'unknown',              -- to written_off or, not folded yet, released, by an operator
        'written_off'))
);
create index settlement_unfolded on settlement (scope_key) where not folded;
create index settlement_unknown on settlement (rid, request_id) where outcome = 'unknown';

create table refusal (                                     -- a request that was refused stays refused
    rid        uuid        not null,
    request_id text        not null,
    scope_key  text        not null,
    reason     text        not null,
    tokens     bigint      not null,                       -- asked for
    micros     bigint,
    at         timestamptz not null,
    primary key (rid, request_id)
);

create table budget_history (                              -- what pruned and compacted runs used
    scope_key        text        not null,
    bucket_at        timestamptz not null,                 -- beginning of the bucket of the window, else of the hour
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

create table budget_audit (                                -- what operators did to budgets
    id         bigint generated always as identity,
    at         timestamptz not null,
    actor      text        not null,
    action     text        not null,
    reason     text        not null,
    scope_key  text        not null,
    rid        uuid,                                       -- of the run whose hold it was
    request_id text,
    tokens     bigint,
    micros     bigint,
    primary key (id),
    constraint audit_action_is_known check (action in ('set', 'released', 'compacted'))
);

-- Leases, where they are not in Redis. Not logged: a crash of the server empties all three together, which begins a new memory.

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
    at_a_time         bigint,                              -- calls of a tool that may run at a time
    primary key (kind, scope, name),
    constraint rate_kind_is_known check (kind in ('key', 'tool', 'model')),
    constraint rate_is_a_limit check (calls_per_minute > 0 or tokens_per_minute > 0 or at_a_time > 0)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200,
        autovacuum_vacuum_cost_delay = 0);

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

-- Memories: facts that outlive runs, by whom they are about.

create table memory_record (
    scope         text        not null,                    -- the tenant, as of runs
    record_id     text        not null,
    within_digest text        not null,                    -- of all its ids in memory_id
    text_digest   text        not null,
    operation_id  text,                                    -- of the extraction that wrote it last
    body          text        not null,
    created_at_ms bigint      not null,                    -- times by the clock of whoever wrote it
    updated_at_ms bigint      not null,
    expires_at_ms bigint,
    primary key (scope, record_id),
    constraint a_fact_is_kept_once unique (scope, within_digest, text_digest)
);
create index memory_record_operation on memory_record (scope, operation_id) where operation_id is not null;

create table memory_id (                                   -- whom a record is about
    scope         text        not null,
    name          text        not null,
    value         text        not null,
    record_id     text        not null,
    primary key (scope, name, value, record_id),
    constraint memory_id_is_known check (name in ('user_id', 'agent_id', 'run_id', 'actor_id', 'chat_id'))
);
create index memory_id_record on memory_id (scope, record_id);

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

-- Conversations that runs write for whoever goes on with them.

create table chat (
    chat_id     text        not null,
    scope       text        not null,                      -- of whoever wrote it first; nobody else writes it
    revision    bigint      not null,                      -- raised by every write
    body        text,                                      -- messages and their ids; null: it was deleted, for good
    updated_at  timestamptz not null,
    primary key (chat_id)
);

create table run_chat (                                    -- how far a run has come in writing its chat
    rid         uuid        not null,
    seq         bigint      not null,                      -- how often it was written; a writer names the one that it read
    body        text        not null,
    primary key (rid)
);
