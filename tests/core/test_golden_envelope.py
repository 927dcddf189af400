"""The stored body, key by key: a golden file that every later build reads, and the page that explains it."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from deuz_workers.core.change import Head
from deuz_workers.core.chat import RunChat
from deuz_workers.core.codec import decode
from deuz_workers.core.envelope import AgentRunEnvelope, LoopCheckpoint, OpenCall, decode_envelope, encode_body
from deuz_workers.core.failover import FailOver, ModelId, Models
from deuz_workers.core.handoff import Handoff
from deuz_workers.core.limits import Limits
from deuz_workers.core.memory import MemoryScope
from deuz_workers.core.messages import user
from deuz_workers.core.nested import Nested
from deuz_workers.core.parent import Parent
from deuz_workers.core.policy import ExecutionPolicy
from deuz_workers.core.run_memory import Extraction, RunMemory
from deuz_workers.core.shared_budget import SharedBudget, Window
from deuz_workers.core.transcript import HistoryRewrite
from deuz_workers.core.usage import Budget, Usage
from tests.core.runs import queued

GOLDEN = Path(__file__).parent / "golden_envelope.json"
PAGE = Path(__file__).parents[2] / "docs" / "record.md"

WHOLE = AgentRunEnvelope(
    rid=queued().envelope.rid,
    scope="s",
    run_id="r",
    run_kind="agent",
    agent="a",
    last_seq=0,
    checkpoint=LoopCheckpoint(
        step=3,
        attempts=2,
        retries=1,
        open_call=OpenCall("q", 2, 100, 7, input_tokens=90, purpose="summary", model="mock:b", scopes=("memory:1",)),
        approval_request_counts={"c": 1},
        output_attempts=1,
        input_checked=True,
        tool_errors={"add": 2},
        cut_off=True,
        reruns=1,
        new_turn=True,
        taken_up=True,
        verify_attempts=1,
        verifying=True,
        summaries=2,
        overflow="retried",
    ),
    limits=Limits(max_steps=5, max_reruns=3),
    usage=Usage(10, 5, cost_micros=30),
    usage_by_model={"mock:scripted": Usage(10, 5, cost_micros=30)},
    unknown_tokens=100,
    unknown_cost_micros=9,
    settled_cost_micros=20,
    calibration=900,
    scopes=("run:1", "user:2"),
    shared=(SharedBudget("user:2", Budget(100, 5), Window(60_000, 6), 80),),
    warned=frozenset({("user:2", "tokens")}),
    unsettled_tokens=15,
    binding={"binding_id": "1", "model": "mock:scripted", "limits": {}, "tools": {}},
    verdicts={"c": {"approval_id": "c@1", "approved": True}},
    held=(user("later"),),
    policy=ExecutionPolicy({"add"}, {"mock:scripted"}, {"add"}, 1_800_000_000_000, 3),
    finalizes=True,
    verifies=True,
    warnings=(("tool", "not as it was meant"),),
    handoffs=(Handoff(1, "t", "a", "b"),),
    models=Models(
        (
            FailOver(
                2,
                1,
                "loop",
                ModelId("mock", "scripted"),
                ModelId("mock", "b", "wire"),
                "overload",
                {"name": "ModelUnavailableError", "code": "model_unavailable"},
            ),
        )
    ),
    memory=RunMemory(
        MemoryScope(user_id="ann"),
        extracts=True,
        given=1,
        recall={"status": "found", "count": 2},
        extraction=Extraction("failed", "o", 2, 1, {"code": "memory-extraction-partial"}, 1),
    ),
    chat=RunChat("chat-1", "s", own_store=True),
    transcript=(HistoryRewrite(1, 2, 5, (user("before"),), (4, user("***")), 1),),
    cancelled=True,
    retry={"name": "ModelTimeoutError", "code": "model_timeout", "kind": "timeout"},
    reason="aborted",
    stop_details={"cancel_reason": "no longer needed"},
    output={"answer": 42},
    has_output=True,
    error={"name": "ModelTimeoutError", "code": "model_timeout"},
    parent=Parent(queued().envelope.rid, "p", "c@1", "c", 2, ("root", "p"), "r", is_quiet=True),
    trace="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    nested=Nested("p", "r", 2, "r/a", MemoryScope(user_id="ann")),
)


def keys() -> set[str]:
    record = json.loads(encode_body(WHOLE))
    return set(record) | set(record["checkpoint"])


@pytest.mark.spec("ENV-015")
def test_a_body_with_every_key_is_read_and_written_as_it_was() -> None:
    """The golden file holds every key that a record can have; a build that changes one on the way fails here."""
    text = GOLDEN.read_text().strip()
    assert json.loads(encode_body(WHOLE)) == json.loads(text)
    read = decode_envelope(_head(text))
    assert replace(read, revision=0, status="queued") == WHOLE
    assert decode(encode_body(read)) == decode(text)
    unset = AgentRunEnvelope(WHOLE.rid, "s", "r", "agent", "a")
    same = {field.name for field in fields(WHOLE) if getattr(WHOLE, field.name) == getattr(unset, field.name)}
    columns = {"rid", "scope", "run_id", "run_kind", "agent", "revision", "status", "phase", "epoch", "journal_seq", "seen_seq"}
    assert same == columns | {"swarm_rid", "task_id", "tool_results"}, (
        "set a new field in WHOLE, add its key to the golden file and to docs/record.md"
    )
    plain = LoopCheckpoint()
    assert {field.name for field in fields(plain) if getattr(WHOLE.checkpoint, field.name) == getattr(plain, field.name)} == {
        "version"
    }


def _head(body: str) -> Head:
    return Head(
        rid=WHOLE.rid,
        scope="s",
        run_id="r",
        kind="agent",
        agent="a",
        queue="default",
        priority=0,
        shard=0,
        revision=1,
        commit_id=None,
        version=1,
        status="running",
        phase="loop",
        epoch=0,
        last_seq=0,
        journal_seq=0,
        seen_seq=0,
        body=body,
        mid_step=False,
        wake_seq=0,
        cancel_seq=0,
        open_items=0,
        parked=None,
        attempts=0,
        due_in_ms=None,
        deadline_in_ms=None,
        start_before_in_ms=None,
    )


@pytest.mark.spec("ENV-015")
def test_the_page_about_the_record_explains_every_key() -> None:
    """Of the body and of the checkpoint, and none that is not there."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert documented - {"body", "deuz"} == keys()
