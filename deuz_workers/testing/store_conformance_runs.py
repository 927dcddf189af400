"""Creating a run and reading it back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from deuz_workers.core.change import MessageRow
from deuz_workers.core.usage import Budget
from deuz_workers.ports.store import Known, RunStore, When
from deuz_workers.testing.store_conformance_bench import HOUR_MS, ODD_TEXT, Bench, change_from, message, receipt


class RunConformance:
    """`create`, `load`, `head`, `now_ms`, `check_schema`."""

    async def test_a_created_run_reads_back_as_it_was_given(self, store: RunStore) -> None:
        """A new run is queued, due at once and at revision 0; head and messages are what the producer gave."""
        bench = Bench(store)
        run = bench.run(
            body='{"a":1}', messages=(message(0), message(1)), version=3, priority=7, agent="editor", tags={"team": "blue"}
        )
        created = await store.create(run)
        assert (created.created, created.rid, created.scope, created.run_id) == (True, run.rid, bench.scope, run.run_id)
        assert created.status == "queued"
        loaded = await store.load(bench.scope, run.run_id)
        assert loaded is not None
        head = loaded.head
        assert (head.rid, head.scope, head.run_id, head.kind) == (run.rid, bench.scope, run.run_id, "agent")
        assert (head.agent, head.queue, head.priority, head.version) == ("editor", bench.queue, 7, 3)
        assert (head.revision, head.commit_id, head.status, head.phase) == (0, None, "queued", "loop")
        assert (head.epoch, head.last_seq, head.journal_seq, head.seen_seq, head.wake_seq) == (0, 1, 0, 0, 0)
        assert (head.cancel_seq, head.open_items, head.parked, head.attempts) == (0, 0, None, 0)
        assert (head.tokens, head.cost_micros, head.swarm_rid, head.task_id) == (0, 0, None, None)
        assert (head.deadline_in_ms, head.start_before_in_ms, head.body) == (None, None, '{"a":1}')
        assert head.due_in_ms is not None
        assert head.due_in_ms <= 0
        assert head.has_work
        assert loaded.messages == run.messages
        assert (loaded.receipts, loaded.notes, loaded.items) == ((), (), ())
        assert abs(head.created_at_ms - await store.now_ms()) < HOUR_MS

    async def test_a_run_without_messages_has_last_seq_minus_one(self, store: RunStore) -> None:
        """`last_seq` is -1 while there is no message, so that the first one gets the number 0."""
        assert (await Bench(store).start()).last_seq == -1

    async def test_head_and_load_agree(self, store: RunStore) -> None:
        """`head` reads the very head that `load` reads."""
        bench = Bench(store)
        head = await bench.start(messages=(message(0),))
        loaded = await store.load(bench.scope, head.run_id)
        assert loaded is not None
        assert replace(loaded.head, due_in_ms=0) == replace(head, due_in_ms=0)

    async def test_a_run_that_does_not_exist_is_none(self, store: RunStore) -> None:
        """An unknown run id, or another scope's, is None for every reader."""
        bench, other = Bench(store), Bench(store)
        head = await bench.start()
        for scope, run_id in ((bench.scope, "nobody"), (other.scope, head.run_id)):
            assert await store.load(scope, run_id) is None
            assert await store.head(scope, run_id) is None
            assert await store.journal(scope, run_id, 0, 10) == ()
            assert await store.open_items(scope, run_id) == ()

    async def test_the_same_run_id_again_writes_nothing(self, store: RunStore) -> None:
        """A second create of a run id answers the first one's row and leaves it as it was."""
        bench = Bench(store)
        first = bench.run(messages=(message(0),), input_digest="aa", tags={"n": "1"})
        await store.create(first)
        second = bench.run(run_id=first.run_id, messages=(message(0, "other"), message(1)), input_digest="bb", body="other")
        answer = await store.create(second)
        assert (answer.created, answer.rid, answer.same_input) == (False, first.rid, False)
        assert (await store.create(replace(second, input_digest="aa"))).same_input
        loaded = await store.load(bench.scope, first.run_id)
        assert loaded is not None
        assert (loaded.head.body, loaded.messages) == ("{}", first.messages)

    async def test_a_run_id_is_unique_over_all_scopes(self, store: RunStore) -> None:
        """A run id that exists under another scope is refused, and stays unreadable from this one."""
        bench, other = Bench(store), Bench(store)
        head = await bench.start()
        answer = await store.create(other.run(run_id=head.run_id))
        assert (answer.created, answer.scope, answer.rid) == (False, bench.scope, head.rid)
        assert await store.head(other.scope, head.run_id) is None

    async def test_an_idempotency_key_makes_one_run_per_scope(self, store: RunStore) -> None:
        """The same key in the same scope answers the run made first; in another scope it means another run."""
        bench, other = Bench(store), Bench(store)
        first = bench.run(idempotency_key="order-17", input_digest="aa")
        await store.create(first)
        again = await store.create(bench.run(idempotency_key="order-17", input_digest="aa"))
        assert (again.created, again.rid, again.run_id, again.same_input) == (False, first.rid, first.run_id, True)
        assert not (await store.create(bench.run(idempotency_key="order-17", input_digest="bb"))).same_input
        assert (await store.create(other.run(idempotency_key="order-17"))).created
        assert (await store.create(bench.run(idempotency_key="order-18"))).created

    async def test_of_many_simultaneous_creates_one_writes(self, store: RunStore) -> None:
        """Ten producers with one idempotency key make one run, and all are told which."""
        bench = Bench(store)
        answers = await asyncio.gather(*(store.create(bench.run(idempotency_key="once")) for _ in range(10)))
        assert sum(answer.created for answer in answers) == 1
        assert len({answer.rid for answer in answers}) == 1

    async def test_every_text_comes_back_as_it_went_in(self, store: RunStore) -> None:
        """Bodies of every kind survive escapes, quotes, place holders, other alphabets, emptiness and size."""
        bench = Bench(store)
        for text in ODD_TEXT:
            head = await bench.start(body=text, messages=(message(0, text),))
            await store.add_note(bench.scope, head.run_id, "message", text)
            await bench.applied(
                head,
                body=text,
                messages=(message(1, text),),
                receipts=(receipt(0, "call-1", 0, text),),
                journal=(text,),
                last_seq=1,
            )
            loaded = await store.load(bench.scope, head.run_id)
            assert loaded is not None
            assert loaded.head.body == text
            assert [row.body for row in loaded.messages] == [text, text]
            assert [row.body for row in loaded.receipts] == [text]
            assert [row.body for row in loaded.notes] == [text]
            assert [row.body for row in await store.journal(bench.scope, head.run_id, 0, 10)] == [text]

    async def test_names_of_any_spelling_are_kept_apart(self, store: RunStore) -> None:
        """Scopes, run ids and tags may contain slashes, quotes and other alphabets, and differ by case."""
        bench = Bench(store)
        for spelling in ("a/b", "A/B", "a%2Fb", "ünïcode", "it's", 'say "hi"', "per%cent", "{brace}"):
            head = await bench.start(run_id=f"{bench.name()}:{spelling}", agent=spelling, tags={spelling: spelling})
            assert head.run_id.endswith(f":{spelling}")
            assert head.agent == spelling

    async def test_a_later_start_is_not_due(self, store: RunStore) -> None:
        """A start in the future is no work yet and invisible to the sweep; one in the past is due at once."""
        bench = Bench(store)
        later = await bench.start(start=When(in_ms=HOUR_MS))
        assert later.due_in_ms is not None
        assert HOUR_MS / 2 < later.due_in_ms <= HOUR_MS
        assert not later.has_work
        at = await bench.start(start=When(at_ms=await store.now_ms() + HOUR_MS))
        assert at.due_in_ms is not None
        assert HOUR_MS / 2 < at.due_in_ms <= HOUR_MS
        past = await bench.start(start=When(at_ms=1))
        assert past.has_work
        assert await bench.swept() == [past.run_id]

    async def test_a_deadline_is_told_by_the_stores_clock(self, store: RunStore) -> None:
        """`deadline_in_ms` and `start_before_in_ms` count down from what was given, and go below zero."""
        head = await Bench(store).start(deadline=When(in_ms=HOUR_MS), start_before=When(at_ms=1))
        assert head.deadline_in_ms is not None
        assert HOUR_MS / 2 < head.deadline_in_ms <= HOUR_MS
        assert head.start_before_in_ms is not None
        assert head.start_before_in_ms < 0

    async def test_a_deadline_makes_a_waiting_run_due(self, store: RunStore) -> None:
        """`due` is never later than the deadline, nor than `start_before` while queued, though nothing else wakes the run."""
        bench = Bench(store)
        queued = await bench.start(start=When(in_ms=10 * HOUR_MS), start_before=When(in_ms=HOUR_MS))
        assert queued.due_in_ms is not None
        assert queued.due_in_ms <= HOUR_MS
        patient = await bench.start(deadline=When(in_ms=HOUR_MS), start_before=When(in_ms=1))
        patient = await bench.suspended(patient)
        assert patient.due_in_ms is not None
        assert HOUR_MS / 2 < patient.due_in_ms <= HOUR_MS
        late = await bench.start(deadline=When(at_ms=1))
        outcome = await bench.applied(late, status="suspended", due_in_ms=None)
        assert outcome.due
        assert (await bench.again(late)).has_work
        ended = await bench.start(deadline=When(in_ms=HOUR_MS))
        await bench.applied(ended, status="completed", due_in_ms=None)
        assert (await bench.again(ended)).due_in_ms is None

    async def test_known_history_is_not_loaded_again(self, store: RunStore) -> None:
        """With `Known`, only messages after `last_seq` of that epoch and receipts from that step on come back."""
        bench = Bench(store)
        head = await bench.start(messages=(message(0), message(1)))
        await bench.applied(
            head,
            messages=(message(2), message(3)),
            receipts=(receipt(0, "a"), receipt(1, "b"), receipt(1, "a"), receipt(1, "a", 1)),
        )
        known = await store.load(bench.scope, head.run_id, Known(epoch=0, last_seq=2, step=1))
        assert known is not None
        assert known.messages == (message(3),)
        assert [(row.step, row.call_id, row.seq) for row in known.receipts] == [(1, "a", 0), (1, "a", 1), (1, "b", 0)]
        other = await store.load(bench.scope, head.run_id, Known(epoch=7, last_seq=2, step=0))
        assert other is not None
        assert [row.seq for row in other.messages] == [0, 1, 2, 3]
        nothing = await store.load(bench.scope, head.run_id, Known(epoch=0, last_seq=3, step=2))
        assert nothing is not None
        assert (nothing.messages, nothing.receipts) == ((), ())

    async def test_a_new_epoch_replaces_the_history(self, store: RunStore) -> None:
        """After a compaction the load returns the new epoch's messages alone, whatever the reader knew of the old one."""
        bench = Bench(store)
        head = await bench.start(messages=(message(0), message(1)))
        summary = MessageRow(0, "summary")
        await bench.applied(head, epoch=1, messages=(summary,), last_seq=0)
        for known in (None, Known(0, 1, 0)):
            loaded = await store.load(bench.scope, head.run_id, known)
            assert loaded is not None
            assert (loaded.head.epoch, loaded.head.last_seq, loaded.messages) == (1, 0, (summary,))

    async def test_a_long_history_is_loaded_whole_and_in_order(self, store: RunStore) -> None:
        """A thousand messages of one commit come back in the order of their numbers."""
        bench = Bench(store)
        head = await bench.start()
        rows = tuple(message(seq) for seq in range(1_000))
        await bench.applied(head, messages=rows)
        loaded = await store.load(bench.scope, head.run_id)
        assert loaded is not None
        assert loaded.messages == rows

    async def test_a_run_brings_its_budget_row(self, store: RunStore) -> None:
        """`NewRun.budget` makes the scope `run:<rid>`, and only for the run that was really created."""
        bench = Bench(store)
        run = bench.run(budget=Budget(tokens=100, usd_micros=5))
        await store.create(run)
        balance = await store.balance(f"run:{run.rid.hex}")
        assert balance is not None
        assert (balance.limit, balance.spent) == (Budget(100, 5), Budget(0, 0))
        refused = bench.run(run_id=run.run_id, budget=Budget(tokens=1))
        await store.create(refused)
        assert await store.balance(f"run:{refused.rid.hex}") is None

    async def test_the_schema_is_in_place(self, store: RunStore) -> None:
        """A store that was opened and migrated passes its own check."""
        await store.check_schema()

    async def test_a_change_may_be_made_from_a_head_alone(self, store: RunStore) -> None:
        """What `head` returns is enough to commit from: nothing else of the row decides."""
        bench = Bench(store)
        head = await bench.start()
        outcome = await store.commit(change_from(head))
        assert (await bench.again(head)).revision == getattr(outcome, "revision", None) == 1
