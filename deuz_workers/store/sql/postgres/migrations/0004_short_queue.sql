alter table run_head
    add column ripe   boolean  not null default false,     -- its time has come, nobody rang: it waits for a place in its queue
    add column misses smallint not null default 0,         -- looks in a row that found nobody who can run it
    add constraint ripe_is_swept check (not ripe or sweep_at is not null);
drop index run_head_sweep;
create index run_head_sweep on run_head (sweep_at) where sweep_at is not null and not ripe and status <> 'queued';
create index run_head_start on run_head (sweep_at) where sweep_at is not null and not ripe and status = 'queued';
create index run_head_ripe on run_head (queue, shard, scope, (-priority), (status = 'queued'), sweep_at) where ripe;
create index run_head_running on run_head (queue, scope) where status = 'running';
