"""Ways to break the worker layer and the engine, each of which a schedule or a named test has to notice."""

from __future__ import annotations

from tests.simulation.edits import Edit, Mutant
from tests.simulation.edits import mutant as _mutant
from tests.simulation.mutations_of_memory import MUTANTS_OF_MEMORY
from tests.simulation.mutations_of_runs import MUTANTS_OF_RUNS

ENGINE = "engine/engine.py"
LEG = "engine/leg.py"
INTAKE = "engine/intake.py"
PAID_CALL = "engine/paid_call.py"
TOOL_TURN = "engine/tool_turn.py"
GATE = "engine/gate.py"
DELEGATING = "engine/delegating.py"
DELEGATION = "core/delegation.py"
COMMITTER = "engine/committer.py"
SWEEP = "engine/sweep.py"
RING = "engine/ring.py"
BELL_LUA = "app/bell.lua"
HEARTBEAT = "engine/heartbeat.py"
INPUTS = "engine/inputs.py"
EVOLVE = "core/evolve.py"
OPEN_CALL = "core/open_call.py"
DECIDE = "core/decide.py"
RECONCILIATION = "core/reconciliation.py"
VERIFY = "engine/verification.py"
VERIFICATION = "core/verification.py"
LEASES = "leases/table.py"
STORE = "store/sql_store.py"
COMMIT = "store/sqlite_commit.py"
COMMIT_SQL = "store/sql/sqlite/commit.sql"
SCHEDULE_SQL = "store/sql/sqlite/schedule.sql"
INPUTS_SQL = "store/sql/sqlite/inputs.sql"


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "rings before the lease is given back",
        (
            Edit(
                ENGINE,
                "            again = await self._release(hold, stop)\n",
                "            await self.ring(scope, run_id, StepReport(end, tuple(bells)))\n"
                "            again = await self._release(hold, stop)\n",
            ),
            Edit(ENGINE, "        await self.ring(scope, run_id, report)\n", ""),
        ),
    ),
    _mutant(
        "the mark of who rang meanwhile is dropped",
        ENGINE,
        '        if again and end in ("turn",',
        '        if False and end in ("turn",',
        "tests/engine/test_two_executors.py",
    ),
    _mutant(
        "a claim in vain leaves no mark",
        LEASES,
        '                    at.sql.execute("update lease set again = 1 where key = ?", (key,))\n',
        "",
        "tests/leases/test_conformance.py::TestMemory",
    ),
    _mutant(
        "a cancel moves the revision",
        INPUTS_SQL,
        "    wake_seq    = h.wake_seq + 1,\n",
        "    wake_seq    = h.wake_seq + 1,\n    revision    = h.revision + (:kind = 'cancel'),\n",
    ),
    _mutant("a cancel note is never folded", INPUTS, "                    cancelled = True\n", "                    pass\n"),
    _mutant(
        "a note read anew is carried ahead of older ones",
        INTAKE,
        "        leg.carried = said_later or (*older, folded, *rest)\n",
        "        leg.carried = said_later or (folded, *older, *rest)\n",
        "tests/engine/test_cancel_first.py",
    ),
    _mutant(
        "neither an ending nor a start asks for unseen cancels",
        COMMIT,
        '    if params["yields"] and before["cancel_seq"] > params["seen_seq"]:\n',
        "    if False:\n",
    ),
    _mutant(
        "a note does not bring the sweep",
        INPUTS_SQL,
        "        else min(coalesce(h.sweep_at_ms, :now_ms + :ttl_ms), :now_ms + :ttl_ms) end,\n",
        "        else h.sweep_at_ms end,\n",
    ),
    _mutant(
        "an answer makes nothing due",
        INPUTS_SQL,
        "    due_at_ms   = case when :wakes then :now_ms else h.due_at_ms end,\n",
        "    due_at_ms   = h.due_at_ms,\n",
    ),
    _mutant(
        "a commit whose answer was lost is not recognised",
        STORE,
        '                case "conflict" if row["stored_commit_id"] == change.commit_id:\n',
        '                case "conflict" if False:\n',
    ),
    _mutant("a commit ignores the expected revision", COMMIT, 'before["revision"] != params["expected"] or before', "before"),
    _mutant(
        "a conflict counts as applied",
        COMMITTER,
        "                case RevisionConflict(revision):\n",
        "                case RevisionConflict():\n                    self._saved, self.stored = covered, after\n"
        "                case RevisionConflict(revision):\n",
    ),
    _mutant(
        "tools start before their commit is known",
        TOOL_TURN,
        "        await leg.commit(*gated.opening)\n    label =",
        '        __import__("asyncio").ensure_future(leg.commit(*gated.opening))\n'
        '        await __import__("asyncio").sleep(0)\n    label =',
    ),
    _mutant(
        "a model call starts before its commit is known",
        PAID_CALL,
        "        await leg.commit(*opening)\n",
        '        __import__("asyncio").ensure_future(leg.commit(*opening))\n        await __import__("asyncio").sleep(0)\n',
    ),
    _mutant(
        "a suspension does not look for inputs",
        COMMIT_SQL,
        "        when o.wake_seq > :seen_seq or (:suspension is not null and :open_items = 0) then :now_ms\n",
        "        when (:suspension is not null and :open_items = 0) then :now_ms\n",
    ),
    _mutant(
        "the sweep forgets what a suspended run waits for",
        COMMIT_SQL,
        "    sweep_at_ms = case when h.due_at_ms <= :now_ms then :now_ms + :ttl_ms else h.due_at_ms end\n",
        "    sweep_at_ms = case when h.due_at_ms <= :now_ms then :now_ms + :ttl_ms when h.status = 'suspended' then null"
        " else h.due_at_ms end\n",
    ),
    _mutant(
        "a back-off forgets when it ends",
        "core/run.py",
        "        due_in_ms=run.due_in_ms,\n",
        "        due_in_ms=None if run.due_in_ms else run.due_in_ms,\n",
    ),
    _mutant(
        "a pass of the sweep takes a row out for good",
        SCHEDULE_SQL,
        "update run_head set sweep_at_ms = :sweep_at_ms where rid = :rid\n",
        "update run_head set sweep_at_ms = nullif(:sweep_at_ms, :sweep_at_ms) where rid = :rid\n",
    ),
    Mutant(
        "an unclean end forgets when to look again",
        (
            Edit(
                SCHEDULE_SQL, "    due_at_ms   = case when h.parked is null then next.at_ms end,\n", "    due_at_ms   = null,\n"
            ),
            Edit(
                SCHEDULE_SQL, "    sweep_at_ms = case when h.parked is null then next.at_ms end\n", "    sweep_at_ms = null\n"
            ),
        ),
    ),
    _mutant(
        "a young memory is claimed like an old one",
        LEASES,
        "            elif not force and at.now_ms - at.born_ms < ttl_ms:\n",
        "            elif False:\n",
    ),
    _mutant(
        "a call that began behind the look at a young run is taken over",
        ENGINE,
        "        if young_ms is not None and head.mid_step:\n",
        "        if False:\n",
        "tests/engine/test_young_memory.py",
    ),
    _mutant(
        "a renewal brings a lost lease back to life",
        LEASES,
        "            if lease.epoch == at.epoch:\n                return Gone()",
        "            if False:\n                return Gone()",
        "tests/leases/test_conformance.py",
        "-k",
        "memory",
    ),
    _mutant(
        "leases are not renewed",
        HEARTBEAT,
        '            vouched = [hold for hold in self.holds if hold.state != "lost" and not self._is_past_limit(hold)]\n',
        "            vouched = list[Hold]()\n",
    ),
    _mutant(
        "a holder that was told its lease is gone writes on",
        COMMITTER,
        "            if not self._may_write():\n",
        "            if False:\n",
    ),
    _mutant(
        "an outcome is kept back while the lease is only suspected",
        ENGINE,
        'lambda: hold.state != "lost", applied',
        "lambda: hold.may_start, applied",
        "tests/engine/test_suspected_lease.py",
    ),
    _mutant(
        "new effects begin under a lease that nobody confirms",
        LEG,
        "        if self.hold.may_start:\n",
        "        if True:\n",
        "tests/engine/test_suspected_lease.py",
    ),
    _mutant(
        "the reply of a model is dropped under a suspected lease",
        LEG,
        "        if self.committer.stored.is_mid_step:\n            await self.commit()\n",
        "",
        "tests/engine/test_suspected_lease.py",
    ),
    _mutant(
        "a takeover is not counted",
        ENGINE,
        '        if lease.predecessor == "lapsed" or (head.mid_step and not await self._was_recorded(head)):\n',
        "        if False:\n",
    ),
    _mutant(
        "the start of a model call counts as progress",
        OPEN_CALL,
        "    draft.move(open_call=call)\n    draft.starts = True\n",
        "    draft.move(open_call=call)\n    draft.progress = draft.starts = True\n",
        "tests/core/test_evolve.py",
    ),
    _mutant(
        "the start of a tool counts as progress",
        EVOLVE,
        "    if not isinstance(event, CallStarted):\n        draft.progress = True\n",
        "    draft.progress = True\n",
    ),
    _mutant(
        "nobody is kept in quarantine",
        ENGINE,
        "        if is_poisoned(attempts) and await gear",
        "        if False and await gear",
    ),
    _mutant(
        "a suspicious run is executed beside others",
        ENGINE,
        "        if is_suspicious(attempts) and not alone:\n",
        "        if False:\n",
        "tests/engine/test_unclean_ends.py",
    ),
    _mutant(
        "a takeover repeats effects that may not be repeated",
        RECONCILIATION,
        'receipt.stage == "executing" and not receipt.idempotent\n',
        'receipt.stage == "executing" and receipt.idempotent is None\n',
    ),
    _mutant(
        "words about some interrupted calls count without the others",
        RECONCILIATION,
        "    return () if left_open else tuple(fitting.values())\n",
        "    return tuple(fitting.values())\n",
        "tests/core/test_reconciliation.py",
    ),
    _mutant(
        "a word counts for whatever execution of its call",
        RECONCILIATION,
        "            and self.attempt in (None, receipt.attempt)\n",
        "",
        "tests/app/test_reconciliation.py",
    ),
    _mutant(
        "a call that was allowed once more passes its gate with the old verdict",
        DECIDE,
        "            verdict = run.retry_verdicts[call.call_id]\n",
        "",
        "tests/app/test_reconciliation.py",
    ),
    _mutant(
        "the policy is not looked at before calls",
        TOOL_TURN,
        "    if violation := policy.violation(calls, agent.tools):\n",
        "    if violation := None:\n",
        "tests/app/test_policy.py",
    ),
    _mutant(
        "a delegated run may do what its agent allows",
        DELEGATION,
        "        policy=envelope.policy.narrowed(to.policy),\n",
        "        policy=to.policy,\n",
        "tests/app/test_subagents.py",
    ),
    _mutant(
        "a delegated run is executed without the guardrails above it",
        DELEGATING,
        "        return kept[1]\n",
        "        return agent\n",
        "tests/app/test_subagents.py",
    ),
    _mutant(
        "all calls of a turn are said to begin at once",
        GATE,
        "        if len(running) <= run.envelope.limits.tool_concurrency:\n",
        "        if True:\n",
        "tests/app/test_call_stages.py",
    ),
    _mutant(
        "a takeover parks whatever was under way",
        DECIDE,
        "    if unknown := unknown_effects(run):\n",
        "    if (unknown := unknown_effects(run)) or envelope.checkpoint.open_call:\n",
    ),
    _mutant(
        "the slot of an ended task is not filled",
        ENGINE,
        "            return\n        bells.extend(await self.gear.store.fill_slots(head.swarm_rid))\n",
        "            return\n",
    ),
    _mutant(
        "nobody wakes the swarm after its last task",
        ENGINE,
        '        if end == "parked" or (last is not None and last.swarm_still):\n',
        "        if False:\n",
    ),
    _mutant(
        "the sweep leaves swarms alone",
        SWEEP,
        "    for swarm_rid in await gear.store.swarms_needing_attention(BATCH):\n",
        "    for swarm_rid in ():\n",
    ),
    _mutant(
        "the verifier is asked before its attempt is saved",
        VERIFY,
        "    await leg.commit(VerificationStarted())\n",
        "    leg.carry(VerificationStarted())\n",
        "tests/engine/test_verification_schedules.py",
    ),
    _mutant(
        "a verdict comes before the deadline",
        VERIFY,
        "effect)\n    if leg.ending_by_time(leg.run):\n        return None\n    if verdict",
        "effect)\n    if verdict",
        "tests/app/test_verification.py",
    ),
    _mutant(
        "the verifier is asked behind a cancel",
        VERIFICATION,
        "    draft.starts = True\n",
        "",
        "tests/app/test_verification.py",
    ),
    _mutant(
        "the verifier may be asked once too often",
        VERIFICATION,
        "    if attempts >= most:\n",
        "    if attempts > most:\n",
        "tests/core/test_verification.py",
    ),
    _mutant(
        "a rejected answer has used up repairs of the next one",
        VERIFICATION,
        "    draft.move(output_attempts=0)\n",
        "",
        "tests/core/test_verification.py",
    ),
    _mutant(
        "a run that began with a verifier completes without one",
        "engine/binding.py",
        '        binding["verifies"] = True\n',
        "        pass\n",
        "tests/app/test_verification.py",
    ),
    _mutant(
        "a run under verification is not in the middle of a step",
        "core/run.py",
        " or checkpoint.verifying or ",
        " or ",
        "tests/core/test_verification.py",
    ),
    _mutant(
        "a parked task keeps its slot",
        "store/sqlite_runs.py",
        '            move_task(tx, row["swarm_rid"], row["task_id"], "needs_reconciliation", only_from=started, detail=why)\n',
        "            pass\n",
        "tests/store/test_dialects_agree.py",
        "tests/store/test_conformance.py",
    ),
    _mutant(
        "a full window has room",
        "core/window.py",
        "        return max(0, open_places(self.size) - self.waiting)\n",
        "        return self.size\n",
    ),
    _mutant(
        "the broker adds to a queue without looking at its window",
        BELL_LUA,
        "    if waiting >= limit then break end\n",
        "",
        "tests/app/test_bell_window.py",
    ),
    _mutant(
        "a window goes below what waits",
        BELL_LUA,
        "  size = math.max(least, tonumber(ARGV[3]), waiting)\n",
        "  size = math.max(least, tonumber(ARGV[3]))\n",
        "tests/app/test_bell_window.py",
    ),
    _mutant(
        "everybody may take the places that are kept for newcomers",
        "core/window.py",
        "    return 0 if size < 2 else max(1, min(MOST_SPARE, size // 4))\n",
        "    return 0\n",
        "tests/core/test_window.py",
    ),
    _mutant(
        "a step that its queue refused waits like one whose doorbell got lost",
        RING,
        "        await store.ripen([(bell.scope, bell.run_id) for bell in left])\n",
        "",
        "tests/engine/test_full_queues.py",
    ),
    _mutant(
        "nobody looks for room for a step that its queue refused",
        RING,
        "        doorbell.leave({shared_queue(bell.queue) for bell in left})\n",
        "",
        "tests/engine/test_full_queues.py",
    ),
    *MUTANTS_OF_RUNS,
    *MUTANTS_OF_MEMORY,
)
