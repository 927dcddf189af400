"""Ways to break recall and extraction, each of which a named test has to notice."""

from __future__ import annotations

from tests.simulation.edits import Mutant, mutant

EXTRACTING = "engine/extracting.py"
RECALLING = "engine/recalling.py"
RUN_MEMORY = "core/run_memory.py"
REMEMBERING = "core/remembering.py"
MEMORY_SQL = "store/sql/sqlite/memory.sql"
EXTRACTION = "tests/app/test_extraction.py"
RECALL = "tests/app/test_recall.py"
CONFORMANCE = "tests/store/test_memory_conformance.py"

MUTANTS_OF_MEMORY: tuple[Mutant, ...] = (
    mutant(
        "the memory is written before its plan is saved",
        EXTRACTING,
        "        try:\n            await leg.commit(*warned, ExtractionPlanned(",
        "        await self._apply(plan)\n        try:\n            await leg.commit(*warned, ExtractionPlanned(",
        f"{EXTRACTION}::test_of_two_executors_one_writes",
        f"{EXTRACTION}::test_a_plan_that_cannot_be_saved_is_not_carried_out",
    ),
    mutant(
        "deletions of the memory are not saved ahead of writes",
        EXTRACTING,
        "            if plan.writes:\n                await self.leg.commit(",
        "            if False:\n                await self.leg.commit(",
        f"{EXTRACTION}::test_deletions_that_were_saved_are_not_made_again",
        f"{EXTRACTION}::test_how_often_an_extraction_is_saved",
    ),
    mutant(
        "a taker-over extracts the memory again without looking what was done",
        EXTRACTING,
        "            if (outcome := judge(self.extraction, present)) is not None:\n",
        "            if (outcome := judge(self.extraction, 0)) is not None:\n",
        f"{EXTRACTION}::test_what_was_done_is_found_to_be_done",
    ),
    mutant(
        "an extraction of the memory that was done in part counts as done",
        RUN_MEMORY,
        "    if confirmed >= extraction.planned:\n",
        "    if confirmed:\n",
        f"{EXTRACTION}::test_what_was_done_in_part_stays_so",
    ),
    mutant(
        "a completed run is not due for its memory",
        REMEMBERING,
        '    draft.change(phase="extracting")\n    draft.due_in_ms = 0\n',
        '    draft.change(phase="extracting")\n',
        f"{EXTRACTION}::test_a_brake_keeps_the_extraction_waiting",
    ),
    mutant(
        "runs that were stopped leave a memory too",
        REMEMBERING,
        '    if memory is None or not memory.extracts or draft.status != "completed":\n',
        "    if memory is None or not memory.extracts:\n",
        f"{EXTRACTION}::test_only_a_completed_run_is_extracted",
    ),
    mutant(
        "what the engine said goes into the memory",
        RUN_MEMORY,
        " if not is_recall(one) and not is_asked_by_engine(one)]\n",
        "]\n",
        f"{EXTRACTION}::test_what_the_memory_llm_reads",
    ),
    mutant(
        "the memory LLM is asked although no budget has room",
        REMEMBERING,
        '    return ExtractionEnded(replace(memory.extraction, status="failed", error=error))\n',
        '    return ExtractionEnded(replace(memory.extraction, status="completed", error=error))\n',
        f"{EXTRACTION}::test_an_extraction_that_no_budget_admits_has_failed",
    ),
    mutant(
        "what an embedder of the memory uses is not settled",
        REMEMBERING,
        '    close_call(draft, "unknown" if used is None else "settled", used)\n',
        '    close_call(draft, "unknown")\n',
        f"{EXTRACTION}::test_what_the_embedder_uses_is_part_of_the_run",
    ),
    mutant(
        "a history that ends with a recall gets another one of the memory",
        RECALLING,
        "    if was_recalled(history):\n",
        "    if not history:\n",
        f"{RECALL}::test_what_was_recalled_is_not_recalled_again",
    ),
    mutant(
        "a delegated run has a memory",
        RECALLING,
        "    if memory is None or envelope.parent is not None or envelope.checkpoint.step:\n",
        "    if memory is None or envelope.checkpoint.step:\n",
        f"{RECALL}::test_a_sub_agent_has_no_memory_of_its_own",
    ),
    mutant(
        "a scope reaches memories that have one of its ids",
        MEMORY_SQL,
        "having count(*) = :id_count\n",
        "having count(*) > 0\n",
        CONFORMANCE,
    ),
    mutant(
        "a nested run may widen whose memory it has",
        RECALLING,
        "not scope.narrows(nested.memory):\n",
        "not nested.memory.narrows(scope):\n",
        "tests/app/test_nested_memory.py::test_a_nested_run_narrows_the_memory_scope",
    ),
)
