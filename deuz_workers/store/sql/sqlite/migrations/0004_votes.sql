-- Items that need several people, and the times at which somebody is reminded of an item or it goes to somebody else.

alter table pending_item add column votes text;
alter table pending_item add column remind_at_ms integer;
alter table pending_item add column escalate_at_ms integer;
