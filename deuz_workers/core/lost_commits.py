"""A store that went backwards: it has an older record of a run than somebody saw saved (architecture D16).

A failover to a standby that lagged, or a restored backup. Nobody knows what happened after the record that is left, so nothing
of the run is executed before a person says so.
"""

from __future__ import annotations

WENT_BACKWARDS = "store-went-backwards"
"""Why such a run is parked."""
LEAP = 1_000_000
"""More commits than an executor of the lost record can make before it is told."""


def revision_after(seen: int) -> int:
    """The revision that such a run goes on from, where `seen` was saved once.

    No revision is used twice: a commit and a live delta of an executor that still has the lost record fit nothing that is
    stored now, and what is left of its leases and doorbells parks the run no second time.
    """
    return seen + LEAP


def seen_before(revision: int) -> int:
    """The revision that was seen of a run parked as `WENT_BACKWARDS` at `revision`."""
    return revision - LEAP
