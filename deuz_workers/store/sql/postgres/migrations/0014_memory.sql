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
