-- Operators compact the ledger of runs that have ended. A check cannot be changed, so the rows move.
alter table budget_audit rename to budget_audit_before;

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

insert into budget_audit (id, at_ms, actor, action, reason, scope_key, rid, request_id, tokens, micros)
select id, at_ms, actor, action, reason, scope_key, rid, request_id, tokens, micros from budget_audit_before;

drop table budget_audit_before;
