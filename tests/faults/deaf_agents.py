"""Workers whose consumer breaks as `TEST_EARS` says, when the file `break.go` is there: without an error, and for good.

`cancel`: each consumer stops to consume soon after it was made. `block`: the thread that consumes waits for ever.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from deuz_workers.workers.hearing import Hearing
from tests.workers.agents import TRACES, application

look = Hearing._look  # pyright: ignore[reportPrivateUsage]


def deaf(self: Hearing, consumer: Any) -> None:
    if (Path(os.environ[TRACES]) / "break.go").exists():
        if os.environ["TEST_EARS"] == "block":
            time.sleep(10_000)
        for queue in list(consumer.task_consumer.queues):
            consumer.task_consumer.cancel_by_queue(queue.name)
    look(self, consumer)


Hearing._look = deaf  # pyright: ignore[reportPrivateUsage]
app = application()
