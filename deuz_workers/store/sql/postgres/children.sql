-- Delegated runs, below the run that waits for them.

-- name: tree
with recursive
-- include: clock
root as materialized (
    select h.rid from run_head h where h.run_id = %(run_id)s::text and h.scope = %(scope)s::text
),
members(rid, depth) as (
    (select r.rid, 0 from root r
     union all
     select t.run_rid, 1 from root r join swarm_task t on t.swarm_rid = r.rid)
    union all
    select h.rid, m.depth + 1 from members m join run_head h on h.parent_rid = m.rid
)
select h.rid, h.parent_rid, h.run_id, h.agent, h.status, h.parked,
       h.parked is null and (h.status in ('queued', 'running')
                             or (h.status = 'suspended' and (coalesce(h.due_at <= c.now, false) or h.wake_seq > h.seen_seq)))
       as goes_on,
-- include: item_columns
from members m
join run_head h on h.rid = m.rid
cross join clock c
left join pending_item p on p.rid = h.rid and p.suspension = h.suspension and h.suspension > 0 and p.answer is null
                         and p.kind <> 'child_run'
where m.depth = 0 or h.status not in ('completed', 'stopped', 'failed')
order by m.depth, h.run_id, p.item_id;

-- name: cancel_children
-- Notes, never a new revision. The run and its children are locked together, by id, as the end of a child locks both. The last batch
-- ends the work after the end of the run.
with
-- include: clock_and_ttl
locked as materialized (
    select h.rid, h.status, h.cancel_seq from run_head h
    where h.rid = any (array_append(array(
              select c.rid from run_head c
              where c.parent_rid = %(rid)s::uuid and c.cancel_seq = 0 and c.status not in ('completed', 'stopped', 'failed')
              order by c.rid
              limit %(limit)s::bigint), %(rid)s::uuid))
    order by h.rid
    for no key update
),
batch as (select rid, status, cancel_seq from locked where rid <> %(rid)s::uuid),
heads as (select rid from batch where cancel_seq = 0 and status not in ('completed', 'stopped', 'failed')),
woken as (
    update run_head h set
        wake_seq   = h.wake_seq + 1,
        cancel_seq = h.wake_seq + 1,
        due_at     = case when h.parked is null then h.due_at else c.now end,
        sweep_at   = least(h.sweep_at, c.later),
        parked     = null
    from heads l, clock c
    where h.rid = l.rid
    returning h.rid, h.wake_seq, h.scope, h.run_id, h.queue, h.revision, h.priority, h.agent
),
noted as (
    insert into inbox (rid, seq, kind, body) select rid, wake_seq, 'cancel', %(note_body)s::text from woken
),
done as (
    update run_head h set due_at = null, sweep_at = null, ripe = false
    where h.rid = %(rid)s::uuid and h.status in ('completed', 'stopped', 'failed')
      and (select count(*) from batch) < %(limit)s::bigint
)
select (select count(*) from woken) as changed, (select count(*) from batch) >= %(limit)s::bigint as more,
       (select coalesce(json_agg(json_build_array(w.scope, w.run_id, w.queue, w.revision, w.priority, w.agent)), '[]')
        from woken w) as bells;

-- name: children
select h.run_id, h.agent, h.status, h.model_step, h.tokens, h.cost_micros
from run_head h
where h.parent_rid = %(rid)s::uuid
order by h.created_at, h.run_id
limit %(limit)s::bigint;
