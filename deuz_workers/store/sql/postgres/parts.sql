-- What several statements share. `clock`: the given time or the database's; `later`: when the sweep looks at a row for which
-- somebody rings now.

-- part: clock
clock as materialized (
    select coalesce(to_timestamp(%(now_ms)s::float8 / 1000), now()) as now
),

-- part: clock_and_ttl
clock as materialized (
    select t.now,
           t.now + %(ttl_ms)s::float8 * interval '1 millisecond' as later,
           t.now + %(ttl_ms)s::float8 / 2 * interval '1 millisecond' as half_way
    from (select coalesce(to_timestamp(%(now_ms)s::float8 / 1000), now()) as now) t
),

-- part: head_columns
    h.rid, h.scope, h.run_id, h.kind, h.agent, h.queue, h.priority, h.shard, h.revision, h.commit_id, h.version, h.status,
    h.phase, h.epoch, h.last_seq, h.journal_seq, h.seen_seq, h.body, h.mid_step, h.wake_seq, h.cancel_seq, h.open_items,
    h.parked, h.attempts, h.tokens, h.cost_micros, h.model_step, h.swarm_rid, h.task_id, h.slot_key, h.slot,
    h.compactions, h.folded_from, h.folded_to, h.folded_step, h.parent_rid,
    h.status = 'suspended' and exists (select 1 from pending_item i where i.rid = h.rid and i.suspension = h.suspension
            and i.kind = 'child_run' and i.answer is null)              as waits_for_children,
    coalesce(h.slot = 'waiting', false) or exists (select 1 from swarm_task t where t.swarm_rid = h.swarm_rid and t.task_id = h.task_id
            and t.status in ('pending', 'ready'))                       as waits_for_slot,
    ceil(extract(epoch from h.due_at - c.now) * 1000)::bigint           as due_in_ms,
    ceil(extract(epoch from h.deadline_at - c.now) * 1000)::bigint      as deadline_in_ms,
    ceil(extract(epoch from h.until_at - c.now) * 1000)::bigint         as until_in_ms,
    ceil(extract(epoch from h.start_before_at - c.now) * 1000)::bigint  as start_before_in_ms,
    floor(extract(epoch from h.created_at) * 1000)::bigint              as created_at_ms

-- part: item_columns
    p.item_id, p.kind as item_kind, p.body as item_body, p.digest as item_digest, p.answer as item_answer,
    p.votes as item_votes,
    ceil(extract(epoch from p.expires_at - c.now) * 1000)::bigint  as item_expires_in_ms,
    ceil(extract(epoch from p.remind_at - c.now) * 1000)::bigint   as item_remind_in_ms,
    ceil(extract(epoch from p.escalate_at - c.now) * 1000)::bigint as item_escalate_in_ms
