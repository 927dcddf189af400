-- Items that need several people, and the times at which somebody is reminded of an item or it goes to somebody else.

alter table pending_item
    add column votes text,
    add column remind_at timestamptz,
    add column escalate_at timestamptz;
