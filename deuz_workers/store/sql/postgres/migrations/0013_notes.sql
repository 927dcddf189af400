-- Notes that narrow what a run may do, and verdicts on calls of a turn that has been taken up.
alter table inbox
    drop constraint note_kind_is_known,
    add constraint note_kind_is_known check (kind in ('cancel', 'message', 'retry', 'reconcile', 'child', 'policy', 'verdict'));
