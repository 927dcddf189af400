"""What leaves the task `deuz.step`."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
from celery import Celery

from deuz_workers.app.bell import STEP_TASK
from deuz_workers.core.change import Bell
from deuz_workers.errors import DeuzError
from deuz_workers.workers.host import Host
from deuz_workers.workers.step_task import add_step_task


class Base(BaseException):
    """An error that `except Exception` lets pass."""


class Breaking:
    """A host whose process raises."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    @property
    def here(self) -> Breaking:
        return self

    def seen_in(self, request: Any, scope: str, run_id: str) -> int:
        return 0

    def step(self, bell: Bell) -> None:
        raise self.error


def leaving(error: BaseException) -> BaseException:
    """What comes out of the task when its step raises `error`."""
    celery = Celery("breaking", set_as_current=False)
    add_step_task(celery, cast(Host, Breaking(error)))
    task = cast(Any, celery.tasks[STEP_TASK])
    task.push_request(delivery_info={"routing_key": "deuz.default"})
    with pytest.raises(BaseException) as raised:
        task.run("s", "r")
    return raised.value


@pytest.mark.parametrize("error", [Base("b"), GeneratorExit(), ValueError("v")], ids=lambda error: type(error).__name__)
def test_only_errors_leave_it(error: BaseException) -> None:
    """A pool that is given anything else loses a slot."""
    assert isinstance(leaving(error), DeuzError)


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()], ids=lambda error: type(error).__name__)
def test_a_signal_ends_the_process(error: BaseException) -> None:
    """Celery's handlers raise in the main thread, and only there."""
    assert leaving(error) is error
    left: list[BaseException] = []
    thread = threading.Thread(target=lambda: left.append(leaving(error)))
    thread.start()
    thread.join()
    assert [type(one) for one in left] == [DeuzError]
