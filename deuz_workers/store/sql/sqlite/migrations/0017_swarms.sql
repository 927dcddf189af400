-- Swarms: dependencies that only wait, tasks that tasks create, the time of an attempt, one journal, drains.

alter table run_head add column until_at_ms integer;
alter table swarm add column journal_seq integer not null default 0;
alter table swarm add column total integer not null default 0;
alter table swarm add column max_tasks integer;
alter table swarm add column max_depth integer;
alter table swarm add column max_spawn integer;
alter table swarm add column cancelling integer not null default 0;
alter table swarm add column draining integer not null default 0;
alter table swarm add column still integer not null default 0;
update swarm set total = (select count(*) from swarm_task t where t.swarm_rid = swarm.rid);
alter table swarm_task add column place integer not null default 0;
alter table swarm_task add column depth integer not null default 0;
alter table swarm_task add column timeout_ms integer;
alter table swarm_edge add column soft integer not null default 0;

create table swarm_event (
    swarm_rid blob    not null,
    seq       integer not null,
    at_ms     integer not null,
    type      text    not null,
    task_id   text,
    detail    text,
    primary key (swarm_rid, seq)
) strict, without rowid;
