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
alter table run_head
    add column slot_key text,                              -- concurrency key, constant for life
    add column slot     text,                              -- of that key: null, asked for, or held
    add constraint slot_is_known check (slot in ('waiting', 'held'));
create index run_head_slot on run_head (scope, slot_key, (-priority), created_at) where slot = 'waiting';
