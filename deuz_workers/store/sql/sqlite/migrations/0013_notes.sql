-- Notes that narrow what a run may do, and verdicts on calls of a turn that has been taken up. SQLite changes no constraint in place, so the table is written anew.
create table inbox_before (
    rid     blob    not null,
    seq     integer not null,
    kind    text    not null,
    note_id blob,
    body    text    not null
) strict;
insert into inbox_before select rid, seq, kind, note_id, body from inbox;
drop table inbox;
create table inbox (
    rid     blob    not null,
    seq     integer not null,                       -- the number that the note raised wake_seq to
    kind    text    not null,
    note_id blob,                                   -- of the sender, so that a note sent again is written once
    body    text    not null,
    primary key (rid, seq),
    constraint kind_is_known check (kind in ('cancel', 'message', 'retry', 'reconcile', 'child', 'policy', 'verdict'))
) strict, without rowid;
create unique index inbox_once_per_note on inbox (rid, note_id) where note_id is not null;
insert into inbox select rid, seq, kind, note_id, body from inbox_before;
drop table inbox_before;
