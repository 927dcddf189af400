"""Tasks that wait for the end of others, whatever it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from deuz_workers import Agent, MockModel, ReducerContext, Swarm, SwarmDefinitionError, Task, reducer
from deuz_workers.errors import ModelRequestError
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.script import Entry
from tests.app.world import World


def worker() -> Agent:
    """Fails where it is asked to, else answers with what it was asked."""

    def answer(request: ModelRequest) -> Entry:
        text = request.messages[-1].text
        return ModelRequestError("no such model") if text == "fail" else f"saw {text}"

    return Agent("x", model=MockModel.function(answer))


@pytest.mark.spec("SFT-001", "SFT-002", "SFT-003", "SFT-004", "SWM-012")
async def test_a_join_runs_whatever_became_of_what_it_waited_for(world: World) -> None:
    """Over a failed, a blocked and a completed task: it gets what completed, and how each of them ended."""
    seen: dict[str, tuple[dict[str, object], dict[str, str]]] = {}

    def note(name: str) -> Any:
        @reducer(name=name)
        def join(results: Mapping[str, object], context: ReducerContext) -> None:
            seen[name] = (dict(results), dict(context.settled))

        return join

    tasks = [
        Task("flaky", agent="x", prompt="fail"),
        Task("good", agent="x", prompt="good"),
        Task("behind", agent="x", depends_on=["flaky"]),
        Task("soft", reducer="soft", after=["flaky", "good", "behind"]),
        Task("both", reducer="both", depends_on=["good"], after=["flaky"]),
        Task("hard", reducer="hard", depends_on=["flaky"], after=["good"]),
        Task("agent", agent="x", after=["good", "flaky"]),
    ]
    agent = worker()
    app = world.process(agent, reducers=[note("soft"), note("both"), note("hard")])
    result = await app.aio.run_swarm_embedded(Swarm("s", tasks), run_id="s1")
    assert result.tasks == {
        "flaky": "failed",
        "good": "completed",
        "behind": "blocked",
        "soft": "completed",
        "both": "completed",
        "hard": "blocked",
        "agent": "completed",
    }
    assert seen == {
        "soft": ({"good": "saw good"}, {"behind": "blocked", "flaky": "failed", "good": "completed"}),
        "both": ({"good": "saw good"}, {"flaky": "failed", "good": "completed"}),
    }
    assert isinstance(agent.model, MockModel)
    [asked] = [request for request in agent.model.requests if "Results" in request.messages[0].text]
    assert '<result task="good">' in asked.messages[0].text
    assert "flaky" not in asked.messages[0].text
    assert set(result.outputs) == {"soft", "both", "agent"}


@pytest.mark.spec("SFT-005")
@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ([Task("a", agent="x", prompt="p", after=["z"])], "'z', which is none of its tasks"),
        ([Task("a", agent="x", after=["b"]), Task("b", agent="x", depends_on=["a"])], "a -> b -> a"),
    ],
)
def test_both_lists_are_checked_together(tasks: list[Task], words: str) -> None:
    """An id that is no task, and a cycle over one edge of each kind."""
    with pytest.raises(SwarmDefinitionError, match=words):
        Swarm("s", tasks)
    with pytest.raises(SwarmDefinitionError, match="after is a list"):
        Task("a", agent="x", after="b")
