"""An application whose runs do something that a person allowed, and then wait in the middle of a tool."""

from __future__ import annotations

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.settings import Settings
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import Entry, call, calls
from tests.workers.agents import hold_again, sign, turn_of


def answer(request: ModelRequest) -> Entry:
    match turn_of(request):
        case 1:
            return calls(call("sign", name="contract"))
        case 2:
            return calls(call("hold_again", name=request.messages[0].text))
        case _:
            return "done"


def application(settings: Settings | None = None) -> Deuz:
    """The application; `settings` None: from the environment."""
    return Deuz([Agent("clerk", model=MockModel.function(answer), tools=[sign, hold_again])], settings=settings)


app = application()
