-- Runs that another run delegated.
alter table run_head add column parent_rid blob;
create index run_head_children on run_head (parent_rid) where parent_rid is not null;
