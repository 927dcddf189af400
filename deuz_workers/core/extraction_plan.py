"""What a memory LLM is asked, and what its answers mean: facts first, then what they change among known memories (MEM-035).

It sees numbers in place of ids, so an id that it makes up names nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from deuz_workers.core.memory import MemoryRecord, MemoryScope
from deuz_workers.core.messages import Message
from deuz_workers.errors import MemoryReplyError

MOST_FACTS = 50
MOST_FACT_CHARS = 2_000

ASK_FACTS = """You keep the long-term memory of an assistant. From the conversation, take what will still matter in later ones:
who the user is, what they like, what they decided, what they asked to be remembered. Leave out what only matters now, what is
general knowledge, and secrets such as passwords and keys. Each fact is one short sentence that is clear by itself.
Answer with JSON and nothing else: {"facts": ["...", "..."]}. Without such a fact: {"facts": []}."""

ASK_CHANGES = """You keep the long-term memory of an assistant. You are given memories by number, and new facts. Say what
becomes of the memory: ADD a fact that is not in it, UPDATE a memory that a fact makes more exact or changes, DELETE one that
a fact makes wrong, NOOP for what is known already.
Answer with JSON and nothing else: {"memory": [{"event": "ADD", "text": "..."}, {"event": "UPDATE", "id": "0", "text": "..."},
{"event": "DELETE", "id": "1"}, {"event": "NOOP", "id": "2"}]}. The text of an ADD or UPDATE is the whole memory as it is to
be."""


@dataclass(frozen=True, slots=True)
class ExtractionPlan:
    deletions: tuple[str, ...] = ()
    """Ids of records."""
    writes: tuple[MemoryRecord, ...] = ()

    @property
    def planned(self) -> int:
        return len(self.deletions) + len(self.writes)


NOTHING_PLANNED = ExtractionPlan()


def conversation_text(messages: Sequence[Message]) -> str:
    """As the memory LLM reads it: what was said, and what tools returned."""
    lines: list[str] = []
    for message in messages:
        if message.text:
            lines.append(f"{message.role}: {message.text}")
        lines += [f"tool {result.name}: {result.text}" for result in message.tool_results]
    return "\n\n".join(lines)


def changes_text(known: Sequence[MemoryRecord], facts: Sequence[str]) -> str:
    memories = [{"id": str(place), "text": record.text} for place, record in enumerate(known)]
    return json.dumps({"memories": memories, "facts": list(facts)}, ensure_ascii=False)


def read_facts(text: str) -> tuple[str, ...]:
    """Raises `MemoryReplyError` for what is no list of facts."""
    facts = _object(text).get("facts")
    if not isinstance(facts, list) or not all(isinstance(fact, str) for fact in cast("list[object]", facts)):
        raise MemoryReplyError("the memory LLM gave no list of facts")
    found = (fact.strip()[:MOST_FACT_CHARS] for fact in cast("list[str]", facts))
    return tuple(dict.fromkeys(fact for fact in found if fact))[:MOST_FACTS]


@dataclass(frozen=True, slots=True)
class Author:
    """Of new records: whose they are, when, and under which ids."""

    scope: MemoryScope
    run_id: str
    operation_id: str
    now_ms: int
    new_id: Callable[[], str]

    def metadata(self, before: Mapping[str, object]) -> dict[str, object]:
        return {**before, "deuz": {"run_id": self.run_id, "operation_id": self.operation_id}}


def read_plan(text: str, known: Sequence[MemoryRecord], author: Author) -> ExtractionPlan:
    """A record is changed once: the first event about it counts. Raises `MemoryReplyError` for what is no list of events."""
    events = _object(text).get("memory")
    if not isinstance(events, list):
        raise MemoryReplyError("the memory LLM gave no list of events")
    left = {str(place): record for place, record in enumerate(known)}
    there = {record.text_digest: place for place, record in left.items() if record.scope == author.scope}
    deletions: list[str] = []
    writes: dict[str, MemoryRecord] = {}
    for given in cast("list[object]", events):
        event = cast("Mapping[str, object]", given) if isinstance(given, Mapping) else {}
        said, record = event.get("text"), left.get(str(event.get("id")))
        words = said.strip()[:MOST_FACT_CHARS] if isinstance(said, str) else ""
        match event.get("event"):
            case "ADD" if words:
                made = MemoryRecord(author.new_id(), words, author.scope, author.now_ms, author.now_ms, author.metadata({}))
                same = left.pop(there.get(made.text_digest, ""), None)  # it takes the place of the one that says so already
                if same is not None:
                    made = replace(same, updated_at_ms=author.now_ms, metadata=author.metadata(same.metadata))
                writes.setdefault(made.text_digest, made)
            case "UPDATE" if words and record is not None:
                del left[str(event.get("id"))]
                metadata = author.metadata(record.metadata)
                made = replace(
                    record, text=words, updated_at_ms=author.now_ms, metadata=metadata, vector=None, embedded_by=None
                )
                writes.setdefault(made.text_digest, made)
            case "DELETE" if record is not None:
                del left[str(event.get("id"))]
                deletions.append(record.record_id)
            case _:
                pass
    return ExtractionPlan(tuple(deletions), tuple(writes.values()))


def _object(text: str) -> Mapping[str, object]:
    """The JSON object in an answer, whatever is written around it."""
    start, end = text.find("{"), text.rfind("}")
    try:
        found = json.loads(text[start : end + 1]) if 0 <= start < end else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise MemoryReplyError("the memory LLM did not answer with a JSON object")
    return cast("Mapping[str, object]", found)
