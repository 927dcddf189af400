"""Execution policies: which tools and models a run may use, and which calls a person has to approve.

A policy only ever gets narrower: what a run began with, what its agent allows now and what a resume gives are taken together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from deuz_workers.core.messages import ToolUsePart
from deuz_workers.errors import ConfigurationError, ExecutionPolicyError

Names = Collection[str]


@dataclass(frozen=True, slots=True)
class ExecutionPolicy:
    """None: everything is allowed. An empty collection allows nothing."""

    allowed_tools: Names | None = None
    """By name. A call of another tool that the agent has ends the run with `tool_not_allowed`."""
    allowed_models: Names | None = None
    """By the model's `name`. A call of another ends the run with `model_not_allowed`."""
    required_approvals: Names = frozenset()
    """Names of tools whose calls need an approval, whatever the tools themselves say."""
    deadline_ms: int | None = None
    """Unix time in milliseconds. A run that has not ended by then fails with `deadline_exceeded`."""
    max_depth: int | None = None
    """How deep below the first run others may be started: its own depth is 0, and 0 lets nothing be delegated. A deeper one is
    refused with `depth_exceeded`."""

    def __post_init__(self) -> None:
        """Raises `ConfigurationError` for what names nothing."""
        for name in ("allowed_tools", "allowed_models", "required_approvals"):
            given: object = getattr(self, name)
            if given is None and name != "required_approvals":
                continue
            if isinstance(given, str) or not isinstance(given, Collection) or not _are_names(cast(Collection[object], given)):
                raise ConfigurationError(f"{name} is a collection of names, not {given!r}")
            object.__setattr__(self, name, frozenset(cast(Collection[str], given)))
        if self.deadline_ms is not None and (type(self.deadline_ms) is not int or self.deadline_ms < 0):
            raise ConfigurationError(f"deadline_ms is Unix time in milliseconds, not {self.deadline_ms!r}")
        if self.max_depth is not None and (type(self.max_depth) is not int or self.max_depth < 0):
            raise ConfigurationError(f"max_depth is a whole number from 0, not {self.max_depth!r}")

    def narrowed(self, other: ExecutionPolicy | None) -> ExecutionPolicy:
        """What both allow (POL-003): fewer tools and models, more approvals, the earlier deadline, the lower depth.

        So a run that another one starts may do what that one may and its own agent allows: `parent.narrowed(agent.policy)`.
        """
        if other is None or other in (self, NO_POLICY):
            return self
        return ExecutionPolicy(
            _both(self.allowed_tools, other.allowed_tools),
            _both(self.allowed_models, other.allowed_models),
            frozenset(self.required_approvals) | frozenset(other.required_approvals),
            _lower(self.deadline_ms, other.deadline_ms),
            _lower(self.max_depth, other.max_depth),
        )

    def violation(self, calls: Iterable[ToolUsePart], known: Collection[str]) -> ExecutionPolicyError | None:
        """Of the first call that it forbids. A name that is none of `known` is no tool, and answered as that."""
        if self.allowed_tools is None:
            return None
        for call in calls:
            if call.name in known and call.name not in self.allowed_tools:
                return ExecutionPolicyError(
                    f"the policy of the run does not allow the tool {call.name!r}; allowed are {_listed(self.allowed_tools)}",
                    code="tool_not_allowed",
                    tool_call_id=call.call_id,
                    tool=call.name,
                )
        return None

    def check_model(self, name: str) -> None:
        """Raises `ExecutionPolicyError` for a model that it forbids."""
        if self.allowed_models is not None and name not in self.allowed_models:
            raise ExecutionPolicyError(
                f"the policy of the run does not allow the model {name!r}; allowed are {_listed(self.allowed_models)}",
                code="model_not_allowed",
                model=name,
            )

    def check_depth(self, depth: int) -> None:
        """Raises `ExecutionPolicyError` for a run that deep below the first one, which is at 0."""
        if self.max_depth is not None and depth > self.max_depth:
            raise ExecutionPolicyError(
                f"the policy of the run allows runs down to depth {self.max_depth} below the first one, and this would be at "
                f"{depth}; raise max_depth or delegate less",
                code="depth_exceeded",
                depth=depth,
                max_depth=self.max_depth,
            )

    def to_record(self) -> dict[str, object]:
        """What it does not limit is absent."""
        record: dict[str, object] = {}
        for name in ("allowed_tools", "allowed_models"):
            if (names := cast("Names | None", getattr(self, name))) is not None:
                record[name] = sorted(names)
        if self.required_approvals:
            record["required_approvals"] = sorted(self.required_approvals)
        for name in ("deadline_ms", "max_depth"):
            if getattr(self, name) is not None:
                record[name] = getattr(self, name)
        return record

    @staticmethod
    def from_record(record: Mapping[str, object]) -> ExecutionPolicy:
        """Raises `ConfigurationError` for a record that is none of ours: a limit that cannot be read is no missing limit."""
        unknown = record.keys() - {"allowed_tools", "allowed_models", "required_approvals", "deadline_ms", "max_depth"}
        if unknown:
            raise ConfigurationError(f"a policy has no {sorted(unknown)}")
        return ExecutionPolicy(
            cast("Names | None", record.get("allowed_tools")),
            cast("Names | None", record.get("allowed_models")),
            cast(Names, record.get("required_approvals", ())),
            cast("int | None", record.get("deadline_ms")),
            cast("int | None", record.get("max_depth")),
        )


def _both(mine: Names | None, theirs: Names | None) -> Names | None:
    if mine is None or theirs is None:
        return theirs if mine is None else mine
    return frozenset(mine) & frozenset(theirs)


def _lower(mine: int | None, theirs: int | None) -> int | None:
    return min((limit for limit in (mine, theirs) if limit is not None), default=None)


def _are_names(given: Collection[object]) -> bool:
    return all(type(name) is str and name for name in given)


def _listed(names: Names) -> str:
    return ", ".join(sorted(names)) or "none"


NO_POLICY = ExecutionPolicy()
