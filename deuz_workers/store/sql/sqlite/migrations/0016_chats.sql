-- Conversations that runs write for whoever goes on with them.

create table chat (
    chat_id       text    not null primary key,
    scope         text    not null,                 -- of whoever wrote it first; nobody else writes it
    revision      integer not null,                 -- raised by every write
    body          text,                             -- messages and their ids; null: it was deleted, for good
    updated_at_ms integer not null
) strict;

create table run_chat (                             -- how far a run has come in writing its chat
    rid  blob    not null primary key,
    seq  integer not null,                          -- how often it was written; a writer names the one that it read
    body text    not null
) strict, without rowid;
