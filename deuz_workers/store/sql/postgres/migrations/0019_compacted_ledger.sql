-- Operators compact the ledger of runs that have ended.
alter table budget_audit drop constraint audit_action_is_known;
alter table budget_audit add constraint audit_action_is_known check (action in ('set', 'released', 'compacted'));
