-- When runs are looked at, and listings of them.

-- part: has_work
    h.parked is null and (coalesce(h.due_at_ms <= :now_ms, 0)
                          or (h.wake_seq > h.seen_seq and (h.slot is not 'waiting' or h.cancel_seq > h.seen_seq)))

-- name: sweep_begun
-- Runs that have begun and whose time has come, oldest first.
select h.rid, h.due_at_ms,
-- include: has_work
    as has_work,
    h.scope, h.run_id, h.queue || iif(h.attempts >= :suspicious, :suffix, '') as queue, h.revision, h.priority, h.agent
from run_head h
where h.sweep_at_ms <= :now_ms and h.begun
  and (:queues is null or h.queue || iif(h.attempts >= :suspicious, :suffix, '') in (select value from json_each(:queues)))
order by h.sweep_at_ms
limit :limit

-- name: sweep_scope
-- The next scope of which a row is swept some time, in the order of shards.
select h.queue, h.shard, h.scope from run_head h
where h.sweep_at_ms is not null and (h.queue, h.shard, h.scope) > (:queue, :shard, :scope)
order by h.queue, h.shard, h.scope
limit 1

-- name: sweep_waiting
-- Runs of one scope that have not begun and whose time has come, by priority and age.
select h.rid, h.due_at_ms,
-- include: has_work
    as has_work,
    h.sweep_at_ms, h.scope, h.run_id, h.queue, h.revision, h.priority, h.agent
from run_head h
where h.queue = :queue and h.shard = :shard and h.scope = :scope and h.sweep_at_ms <= :now_ms
  and not h.begun
order by h.priority desc, h.sweep_at_ms
limit :limit

-- name: sweep_running
-- How many runs of each scope are at work, or were rung for and have not begun: their rows are looked at within a TTL.
select h.queue, h.scope, count(*) as running from run_head h
where h.sweep_at_ms > :now_ms and h.sweep_at_ms <= :now_ms + :ttl_ms
  and (h.status = 'running' or (h.status = 'queued' and h.due_at_ms <= :now_ms))
group by h.queue, h.scope

-- name: sweep_on
-- Rung now, looked at again later; or not yet due, looked at then.
update run_head set sweep_at_ms = :sweep_at_ms where rid = :rid

-- name: ripen
-- Nobody rang for it, since its queue is full: the sweep may feed it at once.
update run_head set sweep_at_ms = min(sweep_at_ms, :now_ms)
where scope = :scope and run_id = :run_id and sweep_at_ms is not null

-- name: put_off
-- Nobody here can run it: after `least_ms`, doubled with every such look in a row up to `most_ms`. A commit begins anew.
update run_head set
    sweep_at_ms = :now_ms + min(:most_ms, :least_ms * (1 << misses)),
    misses      = min(misses + 1, 30)
where run_id = :run_id and scope = :scope and sweep_at_ms is not null

-- name: postpone
update run_head set sweep_at_ms = :now_ms + :in_ms where run_id = :run_id and scope = :scope and sweep_at_ms is not null

-- name: hasten
update run_head set sweep_at_ms = :now_ms, misses = 0
where rid in (
    select h.rid from run_head h
    where h.sweep_at_ms > :now_ms and h.misses > 0
      and h.queue in (select value from json_each(:queues)) and h.agent in (select value from json_each(:agents))
      and
-- include: has_work
    limit :limit)
returning rid

-- name: record_unclean_end
-- A deadline still to come bounds the back-off; one that passed does not, so that a run that kills its workers keeps its distance.
update run_head as h set
    attempts    = h.attempts + 1,
    begun       = 1,
    due_at_ms   = case when h.parked is null then next.at_ms end,
    sweep_at_ms = case when h.parked is null then next.at_ms end
from (
    select min(:now_ms + :back_off_ms, case when deadline_at_ms > :now_ms then deadline_at_ms else :now_ms + :back_off_ms end,
               case when until_at_ms > :now_ms then until_at_ms else :now_ms + :back_off_ms end) as at_ms
    from run_head where rid = :rid
) as next
where h.rid = :rid and h.revision = :expected
returning attempts

-- name: keep_unclean_end
insert into unclean_end (rid, number, at_ms, evidence) values (:rid, :number, :now_ms, :evidence)
on conflict (rid, number) do update set at_ms = excluded.at_ms, evidence = excluded.evidence

-- name: tags
select t.key, t.value from run_head h join run_tag t on t.rid = h.rid where h.run_id = :run_id and h.scope = :scope

-- name: unclean_ends
select e.number, e.at_ms, e.evidence
from run_head h join unclean_end e on e.rid = h.rid and e.number <= h.attempts
where h.run_id = :run_id and h.scope = :scope
order by e.number

-- name: park
update run_head as h set parked = :reason, due_at_ms = null, sweep_at_ms = null, until_at_ms = null,
    revision = coalesce(:as_revision, h.revision), commit_id = case when :as_revision is null then h.commit_id end
where h.rid = :rid and h.revision = :expected
  and (h.wake_seq = h.seen_seq or (:despite_notes and h.cancel_seq <= h.seen_seq))
  and (:as_revision is null or (h.revision < :as_revision and h.status not in ('completed', 'stopped', 'failed')))
returning rid, swarm_rid, task_id

-- name: list_runs
-- A parked run is listed as suspended.
select h.status_at_ms * 1000 as status_at_us,
-- include: head_columns
from run_head h
where (:scope is null or h.scope = :scope)
  and (:any_status
       or case when h.parked is not null and h.status in ('queued', 'running') then 'suspended' else h.status end
          in (select value from json_each(:status)))
  and h.kind in (select value from json_each(:kind))
  and (:agent is null or h.agent = :agent)
  and (:queue is null or h.queue = :queue)
  and (:parked is null or (h.parked is not null) = :parked)
  and (:before_ms is null or (h.status_at_ms, h.rid) < (:before_ms, :before_rid))
  and not exists (
    select 1 from json_each(:tags) wanted
    where not exists (
        select 1 from run_tag t
        where t.rid = h.rid and t.key = json_extract(wanted.value, '$[0]') and t.value = json_extract(wanted.value, '$[1]')))
order by h.status_at_ms desc, h.rid desc
limit :limit

-- name: cost_by_tag
select t.value, count(*) as runs, sum(h.tokens) as tokens,
       case when count(h.cost_micros) = count(*) then sum(h.cost_micros) end as cost_micros
from run_tag t join run_head h on h.rid = t.rid
where t.key = :tag_key and (:scope is null or h.scope = :scope)
group by t.value
order by t.value
