"""Task graphs: valid or refused in words, and the order of ready tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deuz_workers.core.graph import check_graph, find_cycle, ranks, sinks
from deuz_workers.errors import SwarmDefinitionError

Tasks = list[tuple[str, list[str]]]


@st.composite
def acyclic(draw: st.DrawFn) -> Tasks:
    """Every task waits for some of those drawn before it; given in any order."""
    count = draw(st.integers(1, 12))
    tasks = [(f"t{place}", draw(st.lists(st.sampled_from([f"t{up}" for up in range(place)]), unique=True)) if place else [])
             for place in range(count)]  # fmt: skip
    return draw(st.permutations(tasks))


@st.composite
def any_graph(draw: st.DrawFn) -> Tasks:
    """Edges between any two tasks."""
    names = [f"t{place}" for place in range(draw(st.integers(1, 8)))]
    return [(name, draw(st.lists(st.sampled_from(names), unique=True, max_size=3))) for name in names]


@given(acyclic())
def test_a_task_ranks_before_everything_that_waits_for_it(tasks: Tasks) -> None:
    """Ranks are a permutation, and an order that the dependencies allow."""
    check_graph("s", tasks)
    order = ranks(tasks)
    assert sorted(order.values()) == list(range(len(tasks)))
    assert all(order[up] < order[task_id] for task_id, depends_on in tasks for up in depends_on)


@given(acyclic())
def test_the_head_of_the_longest_chain_is_first(tasks: Tasks) -> None:
    """Of what is ready at the start, that which most steps wait for gets the first slot."""
    waits = dict(tasks)
    down = {task_id: [other for other, depends_on in tasks if task_id in depends_on] for task_id in waits}

    def chain(task_id: str) -> int:
        return 1 + max((chain(other) for other in down[task_id]), default=0)

    first = min(ranks(tasks).items(), key=lambda item: item[1])[0]
    assert chain(first) == max(chain(task_id) for task_id in waits)


@given(any_graph())
def test_a_cycle_that_is_found_is_one(tasks: Tasks) -> None:
    """Each task of it waits for the next, and where none is found the tasks can be put in order."""
    cycle = find_cycle(tasks)
    waits = dict(tasks)
    assert all(up in waits[task_id] for task_id, up in zip(cycle, (*cycle[1:], *cycle[:1]), strict=True))
    if not cycle:
        order = ranks(tasks)
        assert all(order[up] < order[task_id] for task_id, depends_on in tasks for up in depends_on)


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ([], "no tasks"),
        ([("a", []), ("a", [])], "2 tasks 'a'"),
        ([("a", ["b"])], "'a' .* depends on 'b', which is none of its tasks: a"),
        ([("a", ["a"])], "a -> a"),
        ([("x", []), ("a", ["c", "x"]), ("b", ["a"]), ("c", ["b"])], "a -> c -> b -> a"),
    ],
)
def test_a_graph_that_is_none_is_refused_in_words(tasks: Tasks, words: str) -> None:
    """The message names the tasks; of a cycle it shows the way round."""
    with pytest.raises(SwarmDefinitionError, match=words):
        check_graph("s", tasks)


def test_sinks_are_what_nothing_waits_for() -> None:
    """In the order of definition."""
    assert sinks([("plan", []), ("b", ["plan"]), ("a", ["plan"])]) == ("b", "a")
