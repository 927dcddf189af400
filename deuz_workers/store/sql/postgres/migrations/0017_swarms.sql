-- Swarms: dependencies that only wait, tasks that tasks create, the time of an attempt, one journal, drains.

alter table run_head add column until_at timestamptz;
alter table swarm
    add column total      integer not null default 0,
    add column max_tasks  integer,
    add column max_depth  integer,
    add column max_spawn  integer,
    add column cancelling boolean not null default false,
    add column draining   boolean not null default false,
    add column still      boolean not null default false;
update swarm s set total = (select count(*) from swarm_task t where t.swarm_rid = s.rid);
alter table swarm_task
    add column place      integer not null default 0,
    add column depth      integer not null default 0,
    add column timeout_ms bigint;
alter table swarm_edge add column soft boolean not null default false;

create table swarm_event (
    swarm_rid uuid        not null,
    seq       bigint      not null,
    type      text        not null,
    task_id   text,
    detail    text,
    at        timestamptz not null,
    primary key (swarm_rid, seq)
);
