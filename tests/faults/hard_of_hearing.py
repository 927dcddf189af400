"""Workers whose doorbells fail as `TEST_BELLS` says: the first of each is lost, or each comes thrice and again later."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from deuz_workers.app.bell import BrokerBell
from deuz_workers.core.change import Bell
from tests.workers.agents import TRACES, application, trace

offer = BrokerBell.offer
late: deque[Bell] = deque(maxlen=8)


def is_first(bell: Bell) -> bool:
    """Nobody in any process has rung so before."""
    try:
        os.close(os.open(Path(os.environ[TRACES]) / f"rung-{bell.run_id}-{bell.revision}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


async def drop_the_first(self: BrokerBell, bells: Sequence[Bell], *, spare: bool = False) -> tuple[Bell, ...]:
    dropped = [bell for bell in bells if is_first(bell)]
    for bell in dropped:
        trace("dropped", f"{bell.run_id} {bell.revision}")
    return await offer(self, [bell for bell in bells if bell not in dropped], spare=spare)


async def repeat(self: BrokerBell, bells: Sequence[Bell], *, spare: bool = False) -> tuple[Bell, ...]:
    left = await offer(self, bells, spare=spare)
    await offer(self, [*late, *bells, *bells])
    late.extend(bells)
    return left


BrokerBell.offer = {"drop": drop_the_first, "repeat": repeat}[os.environ["TEST_BELLS"]]
app = application()
