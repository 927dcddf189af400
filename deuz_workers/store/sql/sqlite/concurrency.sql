-- Slots of concurrency keys. Every change of `slot` of a head moves the counters of its key, in the same transaction.

-- name: slot_asker
select h.rid, h.scope, h.slot_key as key, h.slot from run_head h
where h.rid = :rid and h.revision = :expected and h.parked is null and h.slot_key is not null

-- name: slot_holder
select h.scope, h.slot_key as key, h.slot from run_head h where h.rid = :rid and h.slot is not null

-- name: make_key
insert into concurrency (scope, key, slots) values (:scope, :key, :slots) on conflict do nothing

-- name: key_row
select slots, used, waiting from concurrency where scope = :scope and key = :key

-- name: count_slots
update concurrency set used = used + :used, waiting = waiting + :waiting where scope = :scope and key = :key

-- name: hold_slot
update run_head set slot = 'held' where rid = :rid

-- name: wait_for_slot
-- Only its end wakes it, or a slot. A cancel that it has not seen is its end: the sweep that the note brought near still comes.
update run_head as h set
    slot        = 'waiting',
    due_at_ms   = ends.at_ms,
    sweep_at_ms = case when h.cancel_seq > h.seen_seq
                       then min(coalesce(h.sweep_at_ms, ends.at_ms), coalesce(ends.at_ms, h.sweep_at_ms))
                       else ends.at_ms end
from (select nullif(min(coalesce(deadline_at_ms, 9223372036854775807), coalesce(until_at_ms, 9223372036854775807),
                        case when status = 'queued' then coalesce(start_before_at_ms, 9223372036854775807)
                             else 9223372036854775807 end), 9223372036854775807) as at_ms
      from run_head where rid = :rid) as ends
where h.rid = :rid

-- name: drop_slot
update run_head set slot = null where rid = :rid

-- name: next_for_slot
select rid from run_head
where scope = :scope and slot_key = :key and slot = 'waiting'
order by priority desc, created_at_ms
limit :free

-- name: give_slot
update run_head as h set
    slot        = 'held',
    due_at_ms   = case when h.parked is null then :now_ms end,
    sweep_at_ms = case when h.parked is null then :now_ms + :ttl_ms end
where h.rid = :rid
returning scope, run_id, queue, revision, priority, agent

-- name: set_slots
insert into concurrency (scope, key, slots) values (:scope, :key, :slots)
on conflict (scope, key) do update set slots = excluded.slots

-- name: slot_counters
select slots, used, waiting from concurrency where scope = :scope and key = :key

-- name: keys_needing_attention
select scope, key from concurrency where waiting > 0 and used < slots order by scope, key limit :limit
