"""How an agent's history is kept within the window of its model."""

from __future__ import annotations

from dataclasses import dataclass

from deuz_workers.ports.model import Model


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """Before a model call whose request fills `threshold` of the window, history is left out layer by layer, until the request
    is below `target` of the threshold: results of tools, reasoning, then whole messages behind a summary.

    Never left out: system turns, the opening user turn, the last `keep_turns` turns of the model, the last message.
    """

    context_window_tokens: int | None = None
    """Of the model; None: what the model object says in an attribute of that name."""
    threshold: float = 0.92
    target: float = 0.8
    keep_turns: int = 4
    summarize: bool = True
    """False: nothing is sent to a model for it; whole messages stay."""
    summary_model: Model | None = None
    """Writes the summaries; None: the model that the step calls."""
    summary_tokens: int = 2_048
    """Most tokens of one summary."""


NO_POLICY = CompactionPolicy()
"""What a history is shortened by when a provider refuses it and the agent says nothing about compaction."""


def window_of(policy: CompactionPolicy, model: Model) -> int | None:
    """Tokens that fit a request to this model; None where nobody says. The policy and the model may both: the less counts."""
    stated = (policy.context_window_tokens, getattr(model, "context_window_tokens", None))
    return min((tokens for tokens in stated if isinstance(tokens, int)), default=None)
