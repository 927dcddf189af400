alter table run_head add column misses integer not null default 0;  -- looks in a row that found nobody who can run it
create index run_head_waiting on run_head (queue, shard, scope, priority desc, sweep_at_ms) where sweep_at_ms is not null;
