"""What follows from unclean ends: steps whose process died, or that crashed, since the run last got on (architecture D15).

Many runs share a process, and one that kills it takes its neighbours along. So the first ends in a row only raise suspicion;
from then on the run is executed by a process that executes nothing beside it, and only what happens there speaks against it.
"""

from __future__ import annotations

SUSPICIOUS_ENDS = 2
"""From here on a run is executed alone."""
ENDS_ALONE = 3
"""So many more, and it is left to a person."""
QUARANTINE = "quarantine"
"""Why such a run is parked."""
SUFFIX = ".quarantine"
"""Of queues whose worker executes one run at a time."""


def quarantine_queue(queue: str) -> str:
    """Where suspicious runs of a queue are rung; stores name it too, in their sweep."""
    return queue if queue.endswith(SUFFIX) else queue + SUFFIX


def is_suspicious(attempts: int) -> bool:
    return attempts >= SUSPICIOUS_ENDS


def is_poisoned(attempts: int) -> bool:
    """Every end beyond `SUSPICIOUS_ENDS` happened while nothing else was executed in that process."""
    return attempts >= SUSPICIOUS_ENDS + ENDS_ALONE
