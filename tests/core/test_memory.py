"""Rules of memories: what a scope reaches, what fits a question, what a plan means, how an extraction is judged."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from deuz_workers.core.candidate import ask_for_another, ask_for_output, ask_for_repair
from deuz_workers.core.extraction_plan import (
    MOST_FACT_CHARS,
    MOST_FACTS,
    Author,
    ExtractionPlan,
    changes_text,
    conversation_text,
    read_facts,
    read_plan,
)
from deuz_workers.core.memory import (
    MemoryQuery,
    MemoryRecord,
    MemoryScope,
    is_recall,
    newest_user_text,
    ranked,
    recall_message,
    similarity,
    was_recalled,
)
from deuz_workers.core.messages import Message, ToolResultPart, assistant, system, user
from deuz_workers.core.run_memory import PARTIAL, Extraction, RunMemory, judge, told
from deuz_workers.errors import MemoryReplyError

ANN = MemoryScope(user_id="ann")


def memory(text: str, record_id: str = "", at_ms: int = 1, **given: Any) -> MemoryRecord:
    return MemoryRecord(record_id or text, text, given.pop("scope", ANN), at_ms, at_ms, **given)


def author() -> Author:
    ids = count(1)
    return Author(ANN, "r", "op", 9, lambda: f"new-{next(ids)}")


def plan(known: list[MemoryRecord], *events: dict[str, object]) -> ExtractionPlan:
    return read_plan(json.dumps({"memory": events}), known, author())


@pytest.mark.parametrize(
    ("narrower", "expected"),
    [
        (ANN, True),
        (MemoryScope(user_id="ann", chat_id="c"), True),
        (MemoryScope(user_id="bob"), False),
        (MemoryScope(user_id="bob", chat_id="c"), False),
        (MemoryScope(chat_id="c"), False),
    ],
)
def test_a_scope_narrows_another_by_naming_more(narrower: MemoryScope, expected: bool) -> None:
    """It drops no id and changes none."""
    assert narrower.narrows(ANN) is expected


def test_a_scope_is_read_back_from_its_record() -> None:
    """With the ids that it has, and no others."""
    scope = MemoryScope(user_id="ann", chat_id="c")
    assert scope.to_record() == {"user_id": "ann", "chat_id": "c"}
    assert MemoryScope.from_record(scope.to_record()) == scope
    assert scope.key != ANN.key


def test_what_fits_is_ranked_by_words_then_by_time() -> None:
    """Shared words first, whatever their case; the newest of those that fit alike; no more than the limit."""
    records = [memory("drinks Tea at five", at_ms=1), memory("has a dog", at_ms=2), memory("lives in Rome", at_ms=3)]
    assert [record.text for record in ranked(records, MemoryQuery("tea?", 2))] == ["drinks Tea at five", "lives in Rome"]


def test_vectors_rank_where_both_are_of_one_embedder() -> None:
    """Those of another one are compared by their words."""
    near = memory("near", vector=(1.0, 0.0), embedded_by="e")
    far = memory("far", vector=(-1.0, 0.1), embedded_by="e")
    other = memory("far away", vector=(1.0, 0.0), embedded_by="f")
    query = MemoryQuery("away", 3, (1.0, 0.0), "e")
    assert [record.text for record in ranked([far, other, near], query)] == ["near", "far away", "far"]
    assert (similarity((1.0,), (1.0, 0.0)), similarity((0.0,), (1.0,))) == (0.0, 0.0)


def test_a_recall_is_told_from_other_messages() -> None:
    """By its flag; and it stands behind the last user turn, or another one may follow."""
    recall = recall_message([memory("likes\ntea")])
    assert (is_recall(recall), is_recall(system("likes tea")), is_recall(user("likes tea"))) == (True, False, False)
    assert "- likes tea" in recall.text
    assert was_recalled([user("a"), recall])
    assert was_recalled([user("a"), recall, assistant("b")])
    assert not was_recalled([user("a"), recall, assistant("b"), user("c")])
    assert not was_recalled([system("x")])
    assert (newest_user_text([user("a"), user("b"), assistant("c")]), newest_user_text([system("x")])) == ("b", "")


def test_facts_are_read_from_what_is_written_around_them() -> None:
    """Trimmed, each once, bounded in number and length."""
    given = ["likes tea", " likes tea ", "", *(f"fact {n}" for n in range(MOST_FACTS)), "x" * 9_999]
    found = read_facts(f"Here:\n```json\n{json.dumps({'facts': given})}\n```")
    assert (found[0], len(found), max(map(len, found)) <= MOST_FACT_CHARS) == ("likes tea", MOST_FACTS, True)


@pytest.mark.parametrize(
    "text", ["", "none", "[]", "{", '{"facts": "tea"}', '{"facts": [1]}', '{"memory": []}', "{" * 9_999 + "}"]
)
def test_an_answer_that_is_no_list_of_facts_is_an_error(text: str) -> None:
    """Which repeats nothing of it."""
    with pytest.raises(MemoryReplyError):
        read_facts(text)


@pytest.mark.parametrize("text", ["", '{"memory": {}}', '{"facts": []}'])
def test_an_answer_that_is_no_list_of_events_is_an_error(text: str) -> None:
    """As with facts."""
    with pytest.raises(MemoryReplyError):
        read_plan(text, [], author())


def test_events_become_deletions_and_writes() -> None:
    """New records have new ids, updated ones their own, with the ids of this extraction and the rest of their metadata."""
    known = [memory("tea", "a", metadata={"source": "form"}), memory("dog", "b"), memory("rain", "c")]
    made = plan(
        known,
        {"event": "ADD", "text": " lives in Rome "},
        {"event": "UPDATE", "id": "0", "text": "green tea"},
        {"event": "DELETE", "id": "1"},
        {"event": "NOOP", "id": "2"},
    )
    own = {"run_id": "r", "operation_id": "op"}
    assert made.deletions == ("b",)
    assert made.writes == (
        MemoryRecord("new-1", "lives in Rome", ANN, 9, 9, {"deuz": own}),
        MemoryRecord("a", "green tea", ANN, 1, 9, {"source": "form", "deuz": own}),
    )
    assert made.planned == 3


def test_events_that_name_nothing_do_nothing() -> None:
    """Ids that were made up, texts that are missing, words that are no events, a second event about the same memory."""
    known = [memory("tea", "a")]
    made = plan(
        known,
        {"event": "UPDATE", "id": "7", "text": "x"},
        {"event": "DELETE", "id": "a"},
        {"event": "ADD", "text": "  "},
        {"event": "ADD"},
        {"event": "FORGET", "id": "0"},
        {"event": "DELETE", "id": "0"},
        {"event": "UPDATE", "id": "0", "text": "coffee"},
    )
    assert (made.deletions, made.writes) == (("a",), ())
    assert read_plan('{"memory": [5, null, []]}', known, author()) == ExtractionPlan()


def test_a_plan_counts_what_can_be_confirmed() -> None:
    """Words that are there already, or twice in the plan, are one record, which no later event is about."""
    known = [memory("tea", "a"), memory("dog", "b")]
    made = plan(
        known,
        {"event": "ADD", "text": "tea"},
        {"event": "ADD", "text": "rain"},
        {"event": "ADD", "text": "rain"},
        {"event": "UPDATE", "id": "0", "text": "coffee"},
        {"event": "DELETE", "id": "1"},
        {"event": "ADD", "text": "dog"},
    )
    assert made.deletions == ("b",)
    assert [record.text for record in made.writes] == ["tea", "rain", "dog"]
    assert [record.record_id == "a" for record in made.writes] == [True, False, False]
    assert (made.planned, len({record.record_id for record in made.writes})) == (4, 3)


def test_what_the_memory_llm_reads() -> None:
    """Who said what, results of tools, memories by number."""
    result = Message("tool", (ToolResultPart("c", "look", "seen"),))
    assert conversation_text([user("go"), assistant(""), result, assistant("done")]) == (
        "user: go\n\ntool look: seen\n\nassistant: done"
    )
    assert json.loads(changes_text([memory("tea", "a")], ["dog"])) == {
        "memories": [{"id": "0", "text": "tea"}],
        "facts": ["dog"],
    }


@pytest.mark.spec("MEM-012")
def test_what_an_extraction_is_made_from() -> None:
    """The last user turn that was given and what came after; nothing that the engine said."""
    given = [user("earlier"), assistant("so"), user("now")]
    produced = [
        assistant("looking"),
        Message("tool", (ToolResultPart("c", "look", "seen"),)),
        user("by the way"),
        assistant("ok"),
    ]
    engine = [recall_message([memory("tea")]), ask_for_output(), ask_for_repair("wrong"), ask_for_another("again")]
    assert told([*given, *engine, *produced], 3) == (given[2], *produced)


PENDING = Extraction("pending", "op", planned=3)


@pytest.mark.spec("MEM-018", "MEM-019", "MEM-020", "MEM-021")
@pytest.mark.parametrize(
    ("before", "present", "status", "mutations"),
    [
        (replace(PENDING, planned=None), 0, None, 0),
        (replace(PENDING, planned=None), 1, "completed", 1),
        (replace(PENDING, planned=0), 0, "completed", 0),
        (PENDING, 0, None, 0),
        (PENDING, 3, "completed", 3),
        (PENDING, 1, "failed", 1),
        (replace(PENDING, mutations=1), 2, "completed", 3),
        (replace(PENDING, mutations=1), 0, "failed", 1),
        (replace(PENDING, mutations=3), 0, "completed", 3),
    ],
)
def test_how_an_extraction_is_judged(before: Extraction, present: int, status: str | None, mutations: int) -> None:
    """By what was planned, deletions that were counted, and records that are there; None: it is executed."""
    before = replace(before, error={"code": "memory_store"})
    after = judge(before, present)
    if status is None:
        assert after is None
        return
    assert after is not None
    assert (after.status, after.mutations, after.operation_id) == (status, mutations, "op")
    assert after.error is None if status == "completed" else (after.error or {})["code"] == PARTIAL
    assert after.is_settled


@pytest.mark.spec("MEM-033")
@pytest.mark.parametrize("status", ["pending", "completed", "failed", "partial"])
def test_the_state_is_read_back_from_its_record(status: Any) -> None:
    """With all fields, and with none but those that are always there."""
    full = Extraction(status, "op", 2, 1, {"code": "x"}, 1)
    state = RunMemory(ANN, True, 2, {"status": "found", "count": 1}, full)
    assert RunMemory.from_record(state.to_record()) == state
    assert full.to_record() == {
        "status": status,
        "operation_id": "op",
        "planned": 2,
        "mutations": 1,
        "error": {"code": "x"},
        "attempts": 1,
    }
    least = RunMemory(ANN, extraction=Extraction(status, "op"))
    assert RunMemory.from_record(least.to_record()) == least
