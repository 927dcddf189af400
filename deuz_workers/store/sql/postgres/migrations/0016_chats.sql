-- Conversations that runs write for whoever goes on with them.

create table chat (
    chat_id     text        not null,
    scope       text        not null,                      -- of whoever wrote it first; nobody else writes it
    revision    bigint      not null,                      -- raised by every write
    body        text,                                      -- messages and their ids; null: it was deleted, for good
    updated_at  timestamptz not null,
    primary key (chat_id)
);

create table run_chat (                                    -- how far a run has come in writing its chat
    rid         uuid        not null,
    seq         bigint      not null,                      -- how often it was written; a writer names the one that it read
    body        text        not null,
    primary key (rid)
);
