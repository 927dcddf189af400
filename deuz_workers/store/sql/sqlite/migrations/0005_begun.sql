alter table run_head add column begun integer not null default 0;  -- its status has moved, or a step of it ended unclean
update run_head set begun = 1 where status <> 'queued' or attempts > 0;
create index run_head_begun on run_head (sweep_at_ms) where begun and sweep_at_ms is not null;
