"""The setting `compaction` of an agent."""

from __future__ import annotations

from collections.abc import Iterable

from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.compaction import CompactionPolicy, window_of
from deuz_workers.ports.model import Model


def check_compaction(agent: str, given: object, models: Iterable[Model]) -> CompactionPolicy:
    """The policy that is meant. Raises `ConfigurationError` for one that cannot work, naming the agent and the value."""
    policy = CompactionPolicy() if given == "auto" else given
    if not isinstance(policy, CompactionPolicy):
        raise ConfigurationError(f"agent {agent!r}: compaction is 'auto' or a CompactionPolicy, not {given!r}")
    for name in ("threshold", "target"):
        share: object = getattr(policy, name)
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise ConfigurationError(f"agent {agent!r}: {name} of its compaction is above 0 and up to 1, not {share!r}")
    for name in ("keep_turns", "summary_tokens", "context_window_tokens"):
        count: object = getattr(policy, name)
        if name == "context_window_tokens" and count is None:
            continue
        if type(count) is not int or count < 1:
            raise ConfigurationError(f"agent {agent!r}: {name} of its compaction is a whole number from 1, not {count!r}")
    unknown = next((model for model in models if window_of(policy, model) is None), None)
    if unknown is not None:
        raise ConfigurationError(
            f"agent {agent!r}: nobody knows the context window of {unknown.name}, so its history cannot be compacted; pass "
            "CompactionPolicy(context_window_tokens=...) or a model with an attribute `context_window_tokens`"
        )
    return policy
