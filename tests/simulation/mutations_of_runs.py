"""Ways to break what a run does with calls, answers and its record, each of which a schedule or a named test has to notice."""

from __future__ import annotations

from tests.simulation.edits import Mutant, mutant

CALLS = "engine/calls.py"
GATE = "engine/gate.py"
LEG = "engine/leg.py"
INTAKE = "engine/intake.py"
VERIFICATION = "engine/verification.py"
TAKEN = "engine/taken_answers.py"
MODEL_CALL = "engine/model_call.py"
CANDIDATES = "engine/candidates.py"
FAILOVER = "core/failover.py"
HOOKED = "engine/hooked.py"
DECIDE = "core/decide.py"
EVOLVE = "core/evolve.py"
OPEN_CALL = "core/open_call.py"
ENVELOPE = "core/envelope.py"
HANDOFF = "core/handoff.py"
DOOR = "app/door.py"
SETTLING = "app/settling.py"
INPUTS_SQL = "store/sql/sqlite/inputs.sql"
CHAT = "core/chat.py"
CHATS_SQL = "store/sql/sqlite/chats.sql"
TEST_CHATS = "tests/app/test_chats.py"

MUTANTS_OF_RUNS: tuple[Mutant, ...] = (
    mutant(
        "a chat that went on without the run is written over",
        CHAT,
        '    if occasion == "leg" or fingerprint(stored)',
        '    if occasion != "never" or fingerprint(stored)',
        TEST_CHATS,
    ),
    mutant(
        "a chat that has everything is written again",
        CHAT,
        '        return "keep"\n',
        '        return "write"\n',
        TEST_CHATS,
    ),
    mutant(
        "an executor that dies before the chat of a run leaves it to nobody",
        "core/draft.py",
        "            self.due_in_ms = 0  # until its chat is written\n",
        "            pass\n",
        TEST_CHATS,
    ),
    mutant(
        "an answer that came while a chat was written is forgotten",
        "store/sqlite_chats.py",
        'for name in ("revision", "open_items", "wake_seq")',
        'for name in ("revision",)',
        "tests/store/test_conformance.py",
    ),
    mutant(
        "of two that keep the state of a chat both do",
        CHATS_SQL,
        "body = excluded.body where run_chat.seq = :seq\n",
        "body = excluded.body where true\n",
        "tests/store/test_conformance.py",
    ),
    mutant(
        "what a hook made of a history is said in the chat",
        "core/transcript.py",
        "[rewrite.length :])",
        "[:])",
        "tests/core/test_chat.py",
    ),
    mutant(
        "a model that failed over is called again",
        CANDIDATES,
        "    return candidates[chosen([model.name for model in candidates], run.envelope.models.failed)]\n",
        "    return own if run.envelope.checkpoint.attempts == 0 else candidates[-1]\n",
    ),
    mutant(
        "a call that failed over leaves what it had set aside",
        OPEN_CALL,
        '    close_call(draft, "released" if event.billed == "no" else "unknown")\n    phase',
        "    draft.move(open_call=None)\n    phase",
    ),
    mutant(
        "a fail-over is remembered without those before it",
        OPEN_CALL,
        "Models((*(() if before is None else before.failovers), failed_over))",
        "Models((failed_over,))",
        "tests/app/test_failover.py",
    ),
    mutant(
        "a call whose answer had begun fails over",
        FAILOVER,
        "    return kind is not None and not after_content\n",
        "    return kind is not None\n",
        "tests/app/test_failover.py",
    ),
    mutant(
        "receipts are not consulted",
        DECIDE,
        "        receipt = run.receipts.get(call.call_id)\n        verdict =",
        "        receipt = None\n        verdict =",
    ),
    mutant(
        "what was executed is executed again instead of shown",
        DECIDE,
        '            planned.append(PlannedCall(call, "project", receipt, state, because))\n',
        '            planned.append(PlannedCall(call, "rerun", receipt, state, because))\n',
    ),
    mutant(
        "a denied call begins",
        GATE,
        '    return Rejection.of_denial(planned.denial_reason) if planned.verdict == "denied" else None\n',
        "    return None\n",
    ),
    mutant(
        "a call begins with the model's arguments although people changed them",
        DECIDE,
        '        if state == "approved" and verdict is not None and isinstance(edited',
        '        if state == "" and verdict is not None and isinstance(edited',
    ),
    mutant(
        "an approval is not bound to the arguments that it was asked for",
        GATE,
        "        if not planned.is_as_approved(call.arguments):\n",
        "        if False:\n",
        "tests/app/test_guardrails.py",
    ),
    mutant(
        "an answer counts for a call with another digest",
        TAKEN,
        ".digest == row.digest:\n",
        ".digest:\n",
        "tests/app/test_approvals.py",
        "tests/app/test_client_tools.py",
    ),
    mutant(
        "guardrails are not asked again about a call that is repeated",
        GATE,
        "call.arguments is not None and agent.guardrails.on_tool_call:\n            planned",
        'call.arguments is not None and agent.guardrails.on_tool_call and planned.action == "start":\n            planned',
        "tests/engine/test_guarded_repeats.py",
    ),
    mutant(
        "guardrails of the input look again after every turn",
        EVOLVE,
        "            draft.move(input_checked=True)\n",
        "            pass\n",
        "tests/app/test_guardrails.py",
    ),
    mutant(
        "a leg that is resumed does not look at the input",
        EVOLVE,
        "    draft.move(taken_up=True, input_checked=False)\n",
        "    draft.move(taken_up=True)\n",
        "tests/app/test_guardrails.py",
    ),
    mutant(
        "answers are taken up before all are there",
        INTAKE,
        "if any(item.answer is None for item in leg.items):",
        "if all(item.answer is None for item in leg.items):",
        "tests/engine/test_partial_answers.py",
    ),
    mutant(
        "verdicts are forgotten by the next process",
        ENVELOPE,
        "    if envelope.verdicts:\n",
        "    if False:\n",
        "tests/core/test_golden_envelope.py",
    ),
    mutant(
        "that answers were taken up is forgotten by the next process",
        ENVELOPE,
        '"new_turn", "taken_up", "verifying"):',
        '"new_turn", "verifying"):',
        "tests/core/test_golden_envelope.py",
    ),
    mutant(
        "the number of final answers that were asked for is not stored",
        ENVELOPE,
        '        checkpoint["output_attempts"] = envelope.checkpoint.output_attempts\n',
        "        pass\n",
    ),
    mutant(
        "the attempts of a turn are not stored",
        ENVELOPE,
        '        "attempts": envelope.checkpoint.attempts,\n',
        '        "attempts": 0,\n',
    ),
    mutant(
        "an open model call is not stored",
        ENVELOPE,
        "    if envelope.checkpoint.open_call is not None:\n        checkpoint",
        "    if False:\n        checkpoint",
    ),
    mutant(
        "an item takes a second answer",
        INPUTS_SQL,
        "and answer is null and votes is :votes_before\n  and coalesce",
        "and votes is :votes_before\n  and coalesce",
    ),
    mutant(
        "votes that were not seen are written over",
        INPUTS_SQL,
        "answer is null and votes is :votes_before\n  and coalesce",
        "answer is null and :votes_before is :votes_before\n  and coalesce",
        "tests/store/test_conformance.py",
    ),
    mutant(
        "an expired item takes an answer",
        INPUTS_SQL,
        "  and coalesce(expires_at_ms <= :now_ms, false) = :expired\n",
        "  and :expired = :expired\n",
    ),
    mutant(
        "an expired token is accepted",
        DOOR,
        "        if await self.access.store.now_ms() >= read.expires_at_s * 1000:\n",
        "        if False:\n",
        "tests/app/test_resume.py",
    ),
    mutant(
        "no token is needed",
        DOOR,
        "        if signer is None:\n            return\n",
        "        if signer is None or token is None:\n            return\n",
        "tests/app/test_resume.py",
    ),
    mutant(
        "a token for another request is accepted",
        DOOR,
        "            if named != wanted:\n",
        "            if named == '':\n",
        "tests/app/test_resume.py",
    ),
    mutant(
        "a token is not looked at when its answer is taken up",
        TAKEN,
        '    if signer is None or answer.get("approved") is not True:\n',
        "    if True:\n",
        "tests/app/test_resume.py",
    ),
    mutant(
        "what somebody was shown is not compared with what waits",
        DOOR,
        "        if not isinstance(given, str):\n            self._check_claims(item.binding, given)\n",
        "",
    ),
    mutant(
        "an answer for another run is not refused",
        DOOR,
        "        if not isinstance(given, str) and given.run_id and given.run_id != self.run_id:\n",
        "        if False:\n",
        "tests/app/test_approvals.py",
    ),
    mutant(
        "anybody answers what was asked of three",
        DOOR,
        "        if people and by not in people:\n",
        "        if False:\n",
    ),
    mutant(
        "one of two approvals is enough",
        DOOR,
        "        if len(votes) < needed:\n",
        "        if len(votes) < 1:\n",
    ),
    mutant(
        "the same person approves twice",
        DOOR,
        '        if any(vote.get("by") == by for vote in before):\n',
        "        if False:\n",
    ),
    mutant(
        "people agree to different amounts",
        DOOR,
        '        if any(vote.get("digest") != record.get("digest") for vote in before):\n',
        "        if False:\n",
        "tests/app/test_approvals.py",
    ),
    mutant(
        "a word about some of the interrupted calls is enough",
        SETTLING,
        "    if left := given.left(run):\n",
        "    if left := ():\n",
        "tests/app/test_reconciliation.py",
    ),
    mutant(
        "a word about one execution is taken for the next one",
        "core/reconciliation.py",
        "            and self.attempt in (None, receipt.attempt)\n",
        "",
        "tests/app/test_reconciliation.py",
    ),
    mutant(
        "some words of a note count although it leaves a call open",
        "core/reconciliation.py",
        "    return () if left_open else tuple(fitting.values())\n",
        "    return tuple(fitting.values())\n",
        "tests/core/test_words_about_effects.py",
    ),
    mutant(
        "a letter is put between calls and their results",
        EVOLVE,
        "        if draft.open_calls:\n            draft.change(held",
        "        if False:\n            draft.change(held",
    ),
    mutant(
        "calls of a reply that was cut off stay unanswered",
        EVOLVE,
        '    if calls and event.finish_reason in ("content_filter", "length"):\n',
        "    if False:\n",
    ),
    mutant(
        "a result is left out of the answer of its turn",
        EVOLVE,
        '    draft.append(Message("tool", parts), *draft.value("held"))\n',
        '    draft.append(Message("tool", parts[:2]), *draft.value("held"))\n',
    ),
    mutant(
        "a call nobody knows the end of keeps its reservation",
        OPEN_CALL,
        "    draft.settle = (*draft.settle, settle)\n",
        '    if outcome != "unknown":\n        draft.settle = (*draft.settle, settle)\n',
    ),
    mutant(
        "a reply does not settle its reservation",
        OPEN_CALL,
        "    draft.settle = (*draft.settle, settle)\n",
        '    if outcome != "settled":\n        draft.settle = (*draft.settle, settle)\n',
    ),
    mutant(
        "a rewritten history goes on in the old epoch",
        "core/draft.py",
        "            epoch=before.epoch + (self._rewritten is not None),\n",
        "            epoch=before.epoch,\n",
    ),
    mutant(
        "the raw result of a call is not saved before it is shown",
        CALLS,
        "        await self._save(CallExecuted(call_id, value))\n        return await self._projected(call_id, tool, value)\n",
        "        return (CallExecuted(call_id, value), *await self._projected(call_id, tool, value))\n",
        "tests/app/test_replay.py",
        "tests/app/test_receipts.py",
    ),
    mutant(
        "a reply is not saved before code of the user's is asked about it",
        LEG,
        '        if self.carried and self.run.envelope.status != "queued":\n',
        "        if False:\n",
        "tests/app/test_output_types.py",
        "tests/app/test_hostile_code.py",
    ),
    mutant(
        "a verifier is asked before its attempt is saved",
        VERIFICATION,
        "    await leg.commit(VerificationStarted())\n",
        "    leg.carry(VerificationStarted())\n",
        "tests/app/test_verification.py",
    ),
    mutant(
        "a run that failed for good is taken up again",
        "core/taking_up.py",
        "    if envelope.retry is None:\n",
        "    if False:\n",
        "tests/app/test_failed_runs.py",
    ),
    mutant(
        "calls beside a transfer are the target's",
        HANDOFF,
        "    return newest.source if newest is not None and newest.step == open_step else active_agent(agent, handoffs)\n",
        "    return active_agent(agent, handoffs)\n",
        "tests/app/test_handoff_records.py",
    ),
    mutant(
        "every transfer of a turn is made",
        HANDOFF,
        "    if not is_first or (handoffs and handoffs[-1].step == step):\n",
        "    if False:\n",
        "tests/app/test_handoffs.py",
    ),
    mutant(
        "one transfer more than a run may have is made",
        HANDOFF,
        "    if len(handoffs) >= most:\n",
        "    if len(handoffs) > most:\n",
        "tests/app/test_handoffs.py",
    ),
    mutant(
        "a fork keeps transfers of later turns",
        HANDOFF,
        "    return tuple(each for each in handoffs if each.step <= step)\n",
        "    return tuple(handoffs)\n",
        "tests/app/test_handoff_records.py",
    ),
    mutant(
        "the run stays with its agent in the next step",
        ENVELOPE,
        '    if envelope.handoffs:\n        record["handoffs"]',
        '    if envelope.handoffs and envelope.is_final:\n        record["handoffs"]',
        "tests/app/test_handoff_records.py",
    ),
    mutant(
        "a target with other instructions goes on with a run",
        "engine/binding.py",
        '        "instructions": digest(member.instructions),\n',
        "",
        "tests/app/test_handoff_records.py",
    ),
    mutant(
        "a client's result is taken for a call that was denied",
        TAKEN,
        'if item.binding.kind == "client_tool" and not denied and',
        'if item.binding.kind == "client_tool" and',
    ),
    mutant(
        "a repetition keeps the number of the first attempt",
        EVOLVE,
        "            attempt = 1 if before is None else before.attempt + 1\n",
        "            attempt = 1\n",
    ),
)
