"""What a worker keeps of a message, and what of it events, Flower, `inspect` and logs may show.

The sender's own representation of the arguments (`argsrepr`, `kwargsrepr`) is replaced: anybody may have written it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery.exceptions import InvalidTaskError
from celery.worker.request import Request
from kombu.message import Message

from deuz_workers.app.bell import STEP_TASK
from deuz_workers.workers.drain import Urgency
from deuz_workers.workers.host import host_of
from deuz_workers.workers.message_door import ANSWER_TASK, RECONCILE_TASK

SHOWN_CHARS = 200


class QuietRequest(Request):
    """Shows run id and agent of a doorbell, the agent of an order, the run of an answer, and nothing else.

    A message that asks for more than to be looked at (a time, callbacks) is refused with `InvalidTaskError`; its limits are
    ignored.
    """

    def __init__(self, message: Message, **options: Any) -> None:
        super().__init__(message, **options)
        _, _, embed = options["body"] if options.get("decoded") else message.payload
        if self.eta is not None or self.name != self.type or (isinstance(embed, Mapping) and any(embed.values())):
            raise InvalidTaskError(
                "times, callbacks, chains and other names are not taken: what follows is decided by the run's row"
            )
        self.time_limits = (None, None)
        if self.type == STEP_TASK:
            shown = _step_shown(self.args, self.kwargs, self.request_dict.get("agent"))
        elif self.type in (ANSWER_TASK, RECONCILE_TASK):
            shown = f"(run={_clipped(self.kwargs.get('run_id'))})"
        else:
            shown = f"(agent={_clipped(self.kwargs.get('agent'))})"
        self._argsrepr, self._kwargsrepr = shown, "{}"
        self.request_dict.update(argsrepr=shown, kwargsrepr="{}")

    def info(self, safe: bool = False) -> Any:
        """For `inspect active` and the like, which ask with `safe` False by default."""
        return super().info(safe=True)

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        """A cold shutdown: a child process is ended, a thread cannot be, so its model call is."""
        if pool.uses_semaphore:
            super().cancel(pool, signal, emit_retry)
        else:
            host_of(self.app).flag.ask(Urgency.HURRY)


def _step_shown(args: Any, kwargs: Any, agent: Any) -> str:
    match args:
        case [str(), str() as run_id, int()] if not kwargs:
            return f"({_clipped(run_id)}, agent={_clipped(agent)})"
        case _:
            raise InvalidTaskError(f"{STEP_TASK} takes a scope, a run id and a revision, and nothing else")


def _clipped(value: Any) -> str:
    text = value if isinstance(value, str) else "?"
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."
