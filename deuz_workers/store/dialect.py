"""What a database has to offer to :class:`~deuz_workers.store.sql_store.SqlStore`: named operations, each atomic as a whole.

On Postgres an operation is one statement; on SQLite it may be several under ``BEGIN IMMEDIATE``. Parameters and results have
neutral types: UUID, int, str, bool, None, and lists of these. Parallel lists (``message_seq``, ``message_body``) are columns
of one set of rows. Times are Unix milliseconds, intervals milliseconds by the database's clock.

Every operation takes ``now_ms``, Unix milliseconds instead of the database's clock, None outside tests; it is not repeated
below. ``ttl_ms`` is the lease TTL: work that somebody rings for now is swept so much later. *bell* stands for the columns
``scope run_id queue revision priority agent``; a list of bells in one column is a list of such lists, in that order.

Runs
----
create
    ``run_rid run_scope run_id run_kind run_agent run_body run_version run_queue run_priority run_shard run_last_seq
    run_idem_key? run_slot_key? run_digest run_task_id? run_start_in_ms? run_start_at_ms? run_deadline_in_ms?
    run_deadline_at_ms? run_start_before_in_ms? run_start_before_at_ms?``
    (lists; ``?``: entries may be None; the first is the run itself, the
    others are the tasks of its swarm), ``message_rid message_seq message_body``, ``tag_rid tag_key tag_value``,
    ``budget_key budget_tokens? budget_micros?``, ``swarm_slots`` (None: no swarm) ``swarm_max_tasks? swarm_max_depth?
    swarm_max_spawn?``, ``task_rid task_id task_waiting task_rank task_downstream task_timeout_ms?`` (lists, in the order of the
    runs after the first), ``edge_up edge_down edge_soft``, ``ring_in_ms``
    -> ``created`` bool. Nothing is written when the first run's id or (scope, idempotency key) is taken; a clash of any other
    row raises :class:`Clash`. Heads are queued at revision 0. The first is due at its start or now, a task's is not due; none
    is due later than its deadline or start_before. ``sweep_at`` is ``due_at``, of a run due at once ``ring_in_ms`` later; with
    0 it is ripe. A task that waits for none is ready, others are pending; a swarm is active with open = tasks, running = 0.
find_run
    ``scope run_id idem_key?`` -> ``rid scope run_id status input_digest`` of the row with that key in the scope, else with that
    run id in any scope
head
    ``scope run_id`` -> *head*: ``rid scope run_id kind agent queue priority shard revision commit_id version status phase
    epoch last_seq journal_seq seen_seq body mid_step wake_seq cancel_seq open_items parked attempts due_in_ms deadline_in_ms
    start_before_in_ms tokens cost_micros model_step swarm_rid task_id created_at_ms waits_for_slot compactions folded_from
    folded_to folded_step parent_rid? waits_for_children until_in_ms?`` (``*_in_ms`` rounded up)
load
    ``scope run_id known_epoch known_seq known_step known_compactions whole`` -> *head* and the lists ``message_seq
    message_body`` (of the head's epoch, those above ``known_seq`` if ``known_epoch`` and ``known_compactions`` are the head's,
    else all and ahead of them the record at minus ``compactions``; without ``whole`` those from ``folded_from`` to before
    ``folded_to`` are left out), ``receipt_step receipt_call receipt_seq receipt_stage receipt_body`` (in (step, call, seq)
    order, step >= ``known_step`` and ``folded_step``; with ``whole`` all), ``note_seq note_kind note_body`` (seq >
    ``seen_seq``),
    ``item_id item_kind item_body item_digest? item_expires_in_ms? item_answer?
    item_votes? item_remind_in_ms? item_escalate_in_ms?`` (of the current suspension, in item_id order)
commit_plain, commit_settle, commit_reserve, commit
    the same commit for ever larger changes. ``rid expected commit_id status phase version epoch last_seq seen_seq body
    due_in_ms? mid_step tokens cost_micros? model_step compactions folded_from folded_to folded_step progress yields hears
    ttl_ms``,
    ``message_seq message_body``, ``receipt_step receipt_call receipt_seq receipt_stage receipt_body``, ``journal_seq`` (of the
    newest row before) ``journal_body``
    commit_settle and those after it also: ``settle_id settle_outcome settle_tokens settle_micros? settle_input settle_output
    settle_cached settle_reasoning``
    commit_reserve and commit also: ``request_id?`` (None: nothing is reserved) ``reserve_tokens reserve_micros?
    reserve_uncounted reserve_model reserve_warn_else? reserve_remember`` (a refusal is written down), for each scope, deepest
    first, ``reserve_scope`` (its key) ``reserve_limit_tokens? reserve_limit_micros? reserve_window_ms? reserve_buckets?
    reserve_any_window reserve_named reserve_warn?``
    commit also: ``wakes`` (rids) ``note_body``, ``item_id item_kind item_body item_digest? item_expires_in_ms?
    item_remind_in_ms? item_escalate_in_ms?``,
    ``swarm_rid? task_id? task_status?``, ``parent_rid? parent_item? parent_answer?``, ``child_rid child_run_id child_agent
    child_body child_version child_last_seq child_slot_key?``, ``child_message_rid child_message_seq child_message_body``,
    ``child_budget_key child_budget_tokens? child_budget_micros?``, ``spawn_rid spawn_run_id spawn_task spawn_kind spawn_agent
    spawn_body spawn_last_seq spawn_queue spawn_slot_key? spawn_rank spawn_depth spawn_timeout_ms?`` (messages and budgets in
    the lists of the children), ``spawn_up spawn_down spawn_soft``
    -> one row: ``outcome`` (``applied conflict missing cancel_pending again over_budget too_many``), ``revision?`` (new, or
    stored), ``stored_commit_id?`` (before this operation), ``wake_seq cancel_seq due`` (as stored afterwards), ``refused_scope?
    refused_reason?``, ``woken`` (bells), ``readied_swarm?``, ``swarm_open? swarm_still?``, ``charged?`` (of scopes with a
    threshold, lists of key, used tokens and micros, limits of both, percent). Columns that the smaller ones cannot fill may be
    absent.
    The numbered rules of all of them stand at the top of `sql/postgres/commit.sql`.
record_unclean_end
    ``rid expected back_off_ms evidence`` -> ``attempts``; no row when the revision moved.
    ``due_at = sweep_at = now + back_off``
tags
    ``scope run_id`` -> ``key value``, of a run that exists
unclean_ends
    ``scope run_id`` -> ``number at_ms evidence``, the ends that ``attempts`` counts
park
    ``rid expected reason despite_notes as_revision?`` -> ``rid``; no row when refused. Clears due_at and sweep_at; with
    ``as_revision``, which has to be higher, that is the revision and ``commit_id`` is null, and a final run is refused
add_note
    ``scope run_id kind body note_id ttl_ms`` -> ``rid seq`` and *bell*; no row when there is no such run or it is
    final. A ``note_id`` that is there already: nothing is written, its row comes back.
    ``retry reconcile cancel`` unpark: due now. A task in ``needs_reconciliation`` becomes ready on ``retry reconcile``
answer_items
    ``scope run_id``, the lists ``item_id answer? votes? votes_before? required expired`` and ``answer_id ttl_ms`` -> ``stored
    open_items due`` (bool: the run became due) ``swarm_rid?`` (its task became ready) ``rid`` and *bell*; no row when there is
    no such run. All required ones are stored or nothing is. Only open items of the current suspension that have
    ``votes_before`` and, if ``expired``, have passed their expiry, otherwise have not; one without ``answer`` takes ``votes``
    and stays open
item_answer
    ``rid item_id`` -> ``answer? answer_id? votes?``
open_items
    ``scope run_id`` -> ``item_id item_kind item_body item_digest item_expires_in_ms item_answer item_votes item_remind_in_ms
    item_escalate_in_ms``, unanswered ones only
bells
    ``rids`` -> *bell* of each that is not final
sweep
    ``limit spare ttl_ms queues? from_shard suspicious suffix`` -> *bell* of rows that have work: begun ones,
    oldest first, up to ``limit + spare``; then others as `core.feeding` chooses among the first rows of up to 256
    scopes, for what ``limit`` leaves and ``spare``. ``sweep_at = now + ttl``; a row without work gets its due_at instead and
    is not returned. Of a row with ``attempts >= suspicious`` the queue ends with ``suffix``, there and in ``queues``. Where
    there is a column `ripe`, at most 200 others that have come due become so
ripen
    ``scope run_id`` (lists) ``suspicious`` -> no rows. Those with a sweep_at are swept now
postpone
    ``scope run_id in_ms`` -> no rows. Moves a sweep_at that is not null
put_off
    ``scope run_id least_ms most_ms`` -> no rows. The same, by ``min(most_ms, least_ms * 2 ** misses)``; raises ``misses``,
    which every commit sets to 0
hasten
    ``queues agents limit`` -> ``count``. ``sweep_at = now`` and ``misses = 0`` of rows that have work and were put off
journal
    ``scope run_id after limit`` -> ``seq body at_ms``
list_runs
    ``scope? status kind agent? queue? tag_key tag_value parked? before_us? before_rid? limit`` (``status`` empty: all; a
    parked run counts as suspended) -> *head* and ``status_at_us``, newest (status_at, rid) first
insert_run
    ``rid scope run_id kind agent body status last_seq queue priority phase version revision epoch mid_step tokens cost_micros?
    model_step compactions folded_from folded_to folded_step created_at_ms? parked? is_due slot_key? digest shard``, the lists
    of ``commit`` for messages and receipts, ``journal_seq journal_body journal_at_ms?``, those of ``commit`` for items and
    ``item_answer? item_votes?``, ``tag_key tag_value``, ``budget_key? budget_tokens? budget_micros?`` -> ``created`` bool.
    Nothing is written where the run id is taken
prune
    ``older_ms status scope? limit`` -> ``runs``, how many are gone. At most ``limit``, swarms with all their tasks
cost_by_tag
    ``scope? tag_key`` -> ``value runs tokens cost_micros?`` (None where any is), by value
now
    -> ``now_ms``

The gateway
-----------
append_frames
    ``scope stream_id after body`` (list) -> ``seq`` of each; no rows, and nothing is written, where the newest is another than
    ``after``. Of two that come at once the second may raise :class:`Clash`
read_frames
    ``scope stream_id after limit`` -> ``seq body``, in order
last_frame
    ``scope stream_id`` -> ``seq body``, of the newest
delete_frames
    ``scope stream_id`` -> nothing that is looked at
add_access_token
    ``token_id principal scopes`` (list) ``digest expires_in_ms?`` -> ``token_id``; no row where that is there
find_access_token
    ``digest`` -> ``token_id principal scopes created_at_ms expires_at_ms? revoked_at_ms?`` of one that is good now; ``scopes``
    is a list, or its JSON
access_tokens
    -> the same of all, oldest first
revoke_access_token
    ``token_id`` -> ``token_id``; no row where there is none

Memories
--------
``id_name id_value`` (lists): the ids that a record has to have, all of them. ``at_ms``: expiry is judged by it, None: now.

find_memories
    ``scope id_name id_value at_ms? limit`` -> ``record_id body created_at_ms updated_at_ms expires_at_ms?`` of those that have
    not expired, newest first
write_memories
    ``scope``, the lists ``record_id within_digest text_digest operation_id? body created_at_ms updated_at_ms expires_at_ms?``,
    and ``id_record id_name id_value``, the ids of each -> ``count``. A record with the id is replaced. Where another one has
    ``within_digest`` and ``text_digest``, that takes the rest, and the one with the id is gone. No two with the same of both
delete_memories
    ``scope record_id`` (list) -> ``count``
count_memories
    ``scope operation_id`` -> ``count``
delete_expired_memories
    ``scope id_name id_value at_ms?`` -> ``count``
Chats
-----
load_chat
    ``chat_id`` -> ``scope revision body?``
write_chat
    ``chat_id scope body expected?`` -> ``revision`` (new); no row where the stored revision, or None for no chat, is another,
    the chat was deleted or has another scope. Of two that make a chat at once the second may raise :class:`Clash`
save_chat
    ``chat_id scope body`` -> ``revision``; no row where it was deleted or has another scope
delete_chat
    ``chat_id scope`` -> ``revision``; no row where there is none
chat_state
    ``rid`` -> ``seq body``
keep_chat_state
    ``rid seq body revision open_items wake_seq due_in_ms?`` -> ``kept`` (bool: ``seq`` was the stored one, or 0 and there was
    none; it is ``seq + 1`` now) ``due``; no row where there is no such run. Where kept, of a head that is final or suspended,
    not parked, and has that ``revision``, ``open_items`` and ``wake_seq``: ``due_at``, not later than the deadline while
    suspended, and ``sweep_at`` with it where it is later than now or null
all_messages
    ``rid`` -> ``epoch seq body`` of seq >= 0, in order

Webhooks
--------
add_webhook
    ``webhook_id scope url events`` (list) -> ``webhook_id``; no row where that is there
webhooks
    ``scope?`` -> ``webhook_id scope url events created_at_ms failures disabled? waiting given_up``, oldest first; ``events`` is
    a list, or its JSON
remove_webhook, enable_webhook
    ``webhook_id scope?`` -> ``webhook_id``; no row where there is none of that id (in the scope)
remove_webhook_deliveries
    ``webhook_id`` of one that is gone -> nothing that is looked at
replay_webhook
    ``webhook_id scope? run_id? since_ms? outcome?`` -> ``count`` of deliveries that are to be made again, ``found``
collect_webhook_events
    ``keep_ms`` -> ``count`` of new deliveries
take_webhook_deliveries
    ``limit batch claim_ms`` -> ``webhook_id url failures rid seq scope run_id agent kind body attempts at_ms now_ms``, oldest
    first for each of up to ``limit`` webhooks, which are not due for ``claim_ms``
webhook_delivered
    ``webhook_id rid seq is_last`` -> nothing that is looked at
webhook_failed
    ``webhook_id rid seq wait_ms most_attempts patience_ms disable?`` -> ``disabled?`` of the webhook

Concurrency keys
----------------
take_slot
    ``rid expected slots`` -> ``slot`` (``held waiting``, or ``again``: to be sent again); no row when the revision moved, the
    run is parked or has no key. ``commit`` with a status that suspends or ends, and ``park``, give it back
fill_key
    ``scope key ttl_ms`` -> *bell*. By priority and age; never more than slots - used
set_slots
    ``scope key slots`` -> no rows
slot_counters
    ``scope key`` -> ``slots used waiting``
keys_needing_attention
    ``limit`` -> ``scope key``

Brakes and rates
----------------
controls
    -> at least one row: ``now_ms has_key_rates`` (bool) in every row, and of each brake, and of each rate that is of no key,
    ``what`` (``brake rate``) ``kind name reason? actor? at_ms``, of a rate ``has_rate`` (bool: per minute) ``at_a_time?``;
    where there is none, ``what`` is None
set_brake
    ``kind name reason? actor? act_id`` -> no rows. Replaces one that is set. An ``act_id`` that is there is one act
lift_brake
    ``kind name reason? actor? act_id`` -> ``lifted``
loosen
    ``scope? agent? queue? limit`` -> ``count``. ``sweep_at = now`` and ``misses = 0`` of rows that were put off
brake_acts
    ``limit`` -> ``act kind name reason? actor? at_ms``, newest first
set_rate
    ``kind scope name calls? tokens? at_a_time? burst_ms`` -> no rows. A full bucket; without any limit the row is gone
take_rate
    the lists ``kinds scopes names calls tokens``, and ``burst_ms`` -> ``wait_ms``, 0 where all were taken. Names without a row
    have no limit
give_rate
    the lists ``kinds scopes names``, and ``tokens`` -> no rows
shut_rate
    the lists ``kinds scopes names``, and ``wait_ms`` -> no rows. Never opens what was shut for longer
list_rates
    ``scope?`` -> ``kind scope name calls_per_minute? tokens_per_minute? at_a_time?``; those of the pool with every scope
list_keys
    ``scope? limit`` -> ``scope key slots used waiting``

Delegated runs
--------------
tree
    ``scope run_id`` -> ``rid parent_rid? run_id agent status parked? goes_on`` and the columns of an item, one row for each
    open item that is no ``child_run``, or one with nulls; the run, its tasks and all below that are not final, parents first
children
    ``rid limit`` -> ``run_id agent status model_step tokens cost_micros?``, those with this ``parent_rid``, oldest first
cancel_children
    ``rid limit ttl_ms note_body`` -> ``changed more bells``. Runs with this ``parent_rid`` that are not final and have
    ``cancel_seq = 0`` get a cancel note; with fewer than ``limit``, a final head of ``rid`` loses its due_at and sweep_at

Swarms
------
fill_slots
    ``swarm_rid ttl_ms`` -> *bell*. Started tasks first, then by rank; never more than slots - running
settle_swarm
    ``swarm_rid ttl_ms note_body`` -> *bell*; no row while a task is open or when the head is final. Leaves a ``child`` note.
    Where nothing runs or can run and no step of the head is due, events ``run.drained`` and ``run.settled``, once
drain_swarm
    ``scope run_id`` -> ``rid``; no row where there is no active swarm
resume_swarm
    ``scope run_id expected?`` -> ``rid``; no row where there is no active swarm, or its ``journal_seq`` is another
swarm_events
    ``scope run_id after limit`` -> ``seq type task_id? detail? at_ms``
spawn_ground
    ``swarm_rid task_id task_ids`` -> ``total max_tasks? max_depth? max_spawn? depth body queue existing`` (list)
swarms_needing_attention
    ``limit`` -> ``rid``
block_downstream
    ``swarm_rid limit`` -> ``changed more``. Over all levels of the graph
cancel_tasks
    ``swarm_rid limit ttl_ms note_body`` -> ``changed more bells``. Never started ones are cancelled, their heads ``stopped``
    at a new revision; others that have no cancel note yet (``cancel_seq = 0``) get one
task_results
    ``swarm_rid task_id`` -> ``task_id status body soft``, by task id
swarm_counters
    ``swarm_rid`` -> ``slots open ready running total cancelling draining still journal_seq``; no row for a run that is no swarm
swarm_snapshot
    ``swarm_rid`` -> the columns of swarm_counters in every row, ``task_id? run_id kind agent status waiting tokens cost_micros?
    model_step started_at_ms? ended_at_ms? timeout_ms? depth depends_on after`` (lists), in the order of their creation; a swarm
    without tasks has one row of None

Budgets
-------
set_budget
    ``key tokens? micros? window_ms? buckets? warn_percent? slices? actor reason`` -> ``key``; no row where the window
    is another
open_scope
    ``key window_ms? buckets?`` -> no rows. A scope without limits, unless it is there
slices_of
    ``key`` -> ``slices``
grow_slice
    ``key tokens micros`` (of a slice; what is to be reserved there) -> ``key``; no row where the scope has not enough left
reclaim_slices
    ``key`` -> no rows
balance
    ``key`` -> ``limit_tokens? limit_micros? window_ms? buckets? warn_percent? slices spent_tokens spent_micros held_tokens
    held_micros unknown_tokens unknown_micros window_tokens? window_micros?``
usage
    ``key since_ms?`` -> ``model calls spent_tokens spent_micros held_tokens held_micros unknown_tokens unknown_micros
    input_tokens output_tokens cached_tokens reasoning_tokens``, by model
holds
    ``key? older_ms limit`` -> ``rid request_id tokens micros scope_keys at_ms age_ms model scope? run_id?``, oldest first
release_hold
    ``rid request_id actor reason`` -> ``scope_key tokens micros`` of each scope that the hold was in
compact_ledger
    ``scope run_id actor reason`` -> ``runs settled released unknown waiting`` (calls) ``again open_run_id? open_status?
    open_parked?``; no row where there is no such run. With ``open_run_id`` nothing was done; with ``again`` there is more
audit
    ``key? limit`` -> ``at_ms actor action reason scope_key rid? request_id? tokens? micros?``, newest first
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from deuz_workers.store.migrations import Migration

Row = Mapping[str, Any]


class AnswerLost(Exception):
    """The operation was sent and its answer never came: it was applied or it was not."""


class Contended(Exception):
    """The database gave up on the operation (deadlock, serialization, busy); nothing was written, send it again."""


class Outrun(Contended):
    """By a deadlock or a serialization failure: others were there first."""


class Clash(Exception):
    """A unique key is taken; nothing was written."""


class Dialect(Protocol):
    async def fetch(self, operation: str, params: Mapping[str, object], *, connection: Any = None) -> Sequence[Row]:
        """Run one named operation atomically and return its rows.

        `connection`: the caller's own, in whose transaction it runs; `ConfigurationError` where that cannot be.
        Raises `StoreUnavailableError` when the database could not be reached, so that nothing was sent; :class:`AnswerLost`,
        :class:`Contended`, :class:`Clash`; `MigrationMissingError` when a table is missing; `StoreError` with the SQLSTATE or
        code and nothing of the values for anything else.
        """
        ...

    async def schema_version(self) -> int:
        """Number of the newest migration that was applied, 0 for an empty database."""
        ...

    async def migrate(self, migrations: Sequence[Migration]) -> tuple[int, ...]:
        """Apply those that are missing, in order, under a lock that a second migrator waits for. Returns their numbers."""
        ...

    @property
    def name(self) -> str:
        """Of its folder under `sql/`."""
        ...

    async def close(self) -> None: ...
