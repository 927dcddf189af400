"""Execution policies: what two of them allow together, and what they forbid."""

from __future__ import annotations

from typing import Any

import pytest

from deuz_workers.core.events import PolicyNarrowed
from deuz_workers.core.messages import ToolUsePart
from deuz_workers.core.policy import NO_POLICY, ExecutionPolicy
from deuz_workers.errors import ConfigurationError, ExecutionPolicyError
from tests.core.runs import after, queued, stored

KNOWN = ("read", "write")


def forbidden(policy: ExecutionPolicy, *names: str) -> str | None:
    """Name of the tool whose call is the violation."""
    calls = [ToolUsePart(f"c{place}", name, {}) for place, name in enumerate(names)]
    error = policy.violation(calls, KNOWN)
    assert error is None or error.code == "tool_not_allowed"
    return None if error is None else str(error.fields["tool"])


@pytest.mark.spec("POL-002")
def test_no_list_allows_everything_and_an_empty_one_nothing() -> None:
    """Of tools and of models."""
    assert forbidden(NO_POLICY, "read", "write") is None
    assert forbidden(ExecutionPolicy(allowed_tools=()), "read") == "read"
    assert forbidden(ExecutionPolicy(allowed_tools={"read"}), "read", "write") == "write"
    NO_POLICY.check_model("any")
    ExecutionPolicy(allowed_models=["a"]).check_model("a")
    for none in (ExecutionPolicy(allowed_models=()), ExecutionPolicy(allowed_models=["b"])):
        with pytest.raises(ExecutionPolicyError) as caught:
            none.check_model("a")
        assert caught.value.code == "model_not_allowed"


def test_a_name_that_is_no_tool_is_not_forbidden() -> None:
    """The model made it up; it is answered as unknown and ends nothing."""
    assert forbidden(ExecutionPolicy(allowed_tools=()), "invented") is None


def test_two_policies_allow_what_both_allow() -> None:
    """Fewer names, more approvals, the earlier deadline; in either order, and twice is once."""
    one = ExecutionPolicy({"a", "b"}, None, {"pay"}, 20, 1)
    other = ExecutionPolicy({"b", "c"}, {"m"}, {"refund"}, 10)
    both = ExecutionPolicy({"b"}, {"m"}, {"pay", "refund"}, 10, 1)
    assert one.narrowed(other) == other.narrowed(one) == both
    assert both.narrowed(one) == both.narrowed(both) == both.narrowed(NO_POLICY) == both.narrowed(None) == both
    assert NO_POLICY.narrowed(one) == one
    assert ExecutionPolicy.from_record(both.to_record()) == both
    assert NO_POLICY.to_record() == {}
    assert ExecutionPolicy.from_record(ExecutionPolicy((), ()).to_record()) == ExecutionPolicy((), ())


def test_a_run_keeps_its_policy_and_takes_only_narrower_ones() -> None:
    """Stored with the record; a wider policy later changes nothing."""
    run = stored(after(queued(), PolicyNarrowed(ExecutionPolicy({"a", "b"}, deadline_ms=10))))
    run = stored(after(run, PolicyNarrowed(ExecutionPolicy({"b", "c"}, deadline_ms=99))))
    assert run.envelope.policy == ExecutionPolicy({"b"}, deadline_ms=10)


@pytest.mark.parametrize(
    "given",
    [
        {"allowed_tools": "read"},
        {"allowed_tools": [1]},
        {"allowed_models": [""]},
        {"required_approvals": None},
        {"deadline_ms": 1.5},
        {"deadline_ms": -1},
        {"max_depth": -1},
        {"max_depth": True},
    ],
)
def test_what_names_nothing_is_refused(given: dict[str, Any]) -> None:
    """A text is no collection of names."""
    with pytest.raises(ConfigurationError):
        ExecutionPolicy(**given)


def test_a_limit_that_cannot_be_read_is_no_missing_limit() -> None:
    """A record of a later build that names more is refused."""
    with pytest.raises(ConfigurationError, match="max_children"):
        ExecutionPolicy.from_record({"max_children": 3})


@pytest.mark.spec("POL-003")
def test_a_child_may_what_its_parent_and_its_own_agent_allow() -> None:
    """The intersection of the lists, the earliest deadline, the lowest depth; an approval that is asked for stays on."""
    parent = ExecutionPolicy({"a", "b"}, {"m", "n"}, {"pay"}, 20, 3)
    own = ExecutionPolicy({"b", "c"}, {"n"}, {"refund"}, 30, 2)
    child = parent.narrowed(own)
    assert child == own.narrowed(parent) == ExecutionPolicy({"b"}, {"n"}, {"pay", "refund"}, 20, 2)
    assert parent.narrowed(NO_POLICY) == parent.narrowed(ExecutionPolicy(max_depth=9, deadline_ms=99)) == parent
    assert child.narrowed(ExecutionPolicy({"a", "c"})).allowed_tools == frozenset()
    assert ExecutionPolicy(max_depth=1).narrowed(ExecutionPolicy(max_depth=0)).max_depth == 0


def test_depth_counts_from_the_first_run() -> None:
    """Which is at 0; without a cap any depth is allowed."""
    NO_POLICY.check_depth(99)
    ExecutionPolicy(max_depth=0).check_depth(0)
    ExecutionPolicy(max_depth=2).check_depth(2)
    for deepest in (0, 2):
        with pytest.raises(ExecutionPolicyError) as caught:
            ExecutionPolicy(max_depth=deepest).check_depth(deepest + 1)
        assert caught.value.code == "depth_exceeded"


@pytest.mark.spec("POL-004")
def test_each_violation_has_a_code_of_its_own() -> None:
    """Tool, model and depth; that of a deadline is `deadline_exceeded`, which the engine raises."""
    policy = ExecutionPolicy((), (), max_depth=0)
    found = [policy.violation([ToolUsePart("c", "read", {})], KNOWN)]
    for check in (lambda: policy.check_model("m"), lambda: policy.check_depth(1)):
        with pytest.raises(ExecutionPolicyError) as caught:
            check()
        found.append(caught.value)
    assert [error and error.code for error in found] == ["tool_not_allowed", "model_not_allowed", "depth_exceeded"]
