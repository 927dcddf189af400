-- What the history leaves out, see core/compaction.py.
alter table run_head
    add column compactions integer not null default 0,     -- of this epoch: the record of the newest is message -n
    add column folded_from integer not null default 0,
    add column folded_to   integer not null default 0,     -- messages from folded_from to before it need not be read
    add column folded_step integer not null default 0;     -- receipts of turns below need not be read
