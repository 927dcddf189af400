"""Limits of a run, stored with it and part of its binding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MAX_RETRY_AFTER_MS = 3_600_000
"""What a provider may ask a run to wait: an hour, the longest window that rate limits are counted in short of a day's quota.
Who asks for more sends a moment instead of a time, or has a clock that is wrong; a run that slept for it would look lost."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one run. Times in milliseconds."""

    max_steps: int = 20
    """Turns of the root tool loop and of the final answer together; the requirement tables fix the default (RES-013)."""
    max_retries: int = 4
    """Automatic repeats of a model call after transient failures, per turn."""
    max_output_attempts: int = 2
    """Answers that may be asked for until one has the output type (RES-013)."""
    max_verify_attempts: int = 3
    """Answers that a verifier may look at (RES-013)."""
    max_handoffs: int = 5
    """Transfers to other agents in the whole run; the requirement tables fix the default (HND-007)."""
    max_reruns: int = 0
    """How often a run that would fail for a cause which may pass is taken up again by itself, each time by a turn of its own
    after a longer wait (MDL-013); a reply begins anew."""
    model_timeout_ms: int = 600_000
    tool_timeout_ms: int = 900_000
    tool_concurrency: int = 5
    """Calls of one turn that run at a time; the others begin as these end (PTH-014)."""

    def to_record(self) -> dict[str, object]:
        return {
            "max_steps": self.max_steps,
            "max_retries": self.max_retries,
            "max_output_attempts": self.max_output_attempts,
            "max_verify_attempts": self.max_verify_attempts,
            "max_handoffs": self.max_handoffs,
            "max_reruns": self.max_reruns,
            "model_timeout_ms": self.model_timeout_ms,
            "tool_timeout_ms": self.tool_timeout_ms,
            "tool_concurrency": self.tool_concurrency,
        }

    @staticmethod
    def from_record(record: Mapping[str, object]) -> Limits:
        known = Limits().to_record()
        return Limits(**{name: value for name, value in record.items() if name in known and isinstance(value, int)})
