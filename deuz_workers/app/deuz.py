"""The application object: what can run, where it is stored, and the clients that start and watch runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TypeVar

from deuz_workers.app.agent import Agent
from deuz_workers.app.bell import bell_of
from deuz_workers.app.reducer import Reducer
from deuz_workers.app.registry import AppRegistry
from deuz_workers.app.settings import Settings
from deuz_workers.engine.system_clock import SystemIds
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.runtime import Doorbell, Ids
from deuz_workers.providers.prices import Price, PriceList

T = TypeVar("T")

NO_PRICES: Mapping[str, Price] = {}


class Deuz:
    """An application. Made at import, in every process of it; connects to nothing before the first call that needs to.

    Without agents it is a client: it starts, watches and answers runs that other processes execute.
    """

    def __init__(
        self,
        agents: Iterable[Agent] = (),
        *,
        reducers: Iterable[Reducer] = (),
        settings: Settings | None = None,
        prices: Mapping[str, Price] = NO_PRICES,
    ) -> None:
        """`settings` None: read from environment and file at the first use. `prices`: see `PriceList`.

        Raises ConfigurationError for a name that is there twice, and for what is no agent or reducer.
        """
        given = _checked(agents, Agent, "an agent")
        self.registry = AppRegistry(
            [agent.definition for agent in given],
            [reducer.definition for reducer in _checked(reducers, Reducer, "a reducer")],
        )
        self.agents: Mapping[str, Agent] = {agent.name: agent for agent in given}
        self.prices = PriceList(prices)
        self._settings = settings

    @cached_property
    def ids(self) -> Ids:
        return SystemIds()

    @cached_property
    def doorbell(self) -> Doorbell:
        """Rings the workers of this application; usable from any process and loop."""
        return bell_of(self.settings.broker, self.ids)

    @cached_property
    def settings(self) -> Settings:
        return self._settings or Settings()


def _checked(given: Iterable[T], kind: type[T], what: str) -> list[T]:
    found = list(given)
    for item in found:
        if not isinstance(item, kind):
            raise ConfigurationError(f"a {type(item).__name__} is not {what}; pass {kind.__name__}(...)")
    return found
