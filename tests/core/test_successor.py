"""A record with some fields changed."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace

import pytest

from deuz_workers.core.envelope import AgentRunEnvelope, LoopCheckpoint
from deuz_workers.core.receipts import Receipt
from deuz_workers.core.run import Run
from deuz_workers.core.successor import successor


def test_it_is_what_replace_makes() -> None:
    """Equal to a copy by the standard library, and the first one is as it was."""
    before = LoopCheckpoint(step=3)
    after = successor(before, attempts=2, cut_off=True)
    assert after == replace(before, attempts=2, cut_off=True)
    assert before == LoopCheckpoint(step=3)
    with pytest.raises(FrozenInstanceError):
        after.step = 4  # pyright: ignore[reportAttributeAccessIssue]


def test_a_field_that_is_not_there_is_refused() -> None:
    """It would be kept and never read."""
    with pytest.raises(TypeError, match="LoopCheckpoint has no field setps, stp"):
        successor(LoopCheckpoint(), stp=1, setps=2)


@pytest.mark.parametrize("record", [AgentRunEnvelope, LoopCheckpoint, Receipt, Run])
def test_the_records_that_are_copied_so_keep_their_fields_in_one_dict(record: type) -> None:
    """No slots and nothing that is worked out at the end of the construction, which a copy would miss."""
    assert not hasattr(record, "__slots__")
    assert not hasattr(record, "__post_init__")
    assert all(field.init for field in fields(record))
