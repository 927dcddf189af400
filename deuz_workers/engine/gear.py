"""Everything an engine works with, chosen by whoever builds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from deuz_workers.core.approval_token import ApprovalSigner
from deuz_workers.core.budget_warning import BudgetWarning
from deuz_workers.core.run import Run
from deuz_workers.engine.controls import KnownControls
from deuz_workers.engine.heartbeat import Heartbeat
from deuz_workers.engine.histories import Histories
from deuz_workers.engine.settings import EngineSettings
from deuz_workers.ports.breakers import Breakers, NoBreakers
from deuz_workers.ports.builds import Builds, NoBuilds
from deuz_workers.ports.catalog import Catalogs, NoCatalogs
from deuz_workers.ports.chat import ChatStore
from deuz_workers.ports.context import RunContext
from deuz_workers.ports.definition import Registry
from deuz_workers.ports.leases import LeaseProvider
from deuz_workers.ports.live import LiveSink
from deuz_workers.ports.runtime import Clock, Doorbell, Ids, Prices, Threads
from deuz_workers.ports.store import Known, RunStore
from deuz_workers.ports.telemetry import NoTelemetry, Telemetry


@dataclass(frozen=True, slots=True)
class Gear:
    store: RunStore
    leases: LeaseProvider
    heartbeat: Heartbeat
    registry: Registry
    doorbell: Doorbell
    clock: Clock
    ids: Ids
    prices: Prices
    sink: LiveSink
    threads: Threads
    """For user code that is no coroutine; what is ours and takes long goes to the executor of the loop."""
    settings: EngineSettings = field(default_factory=EngineSettings)
    histories: Histories = field(default_factory=Histories)
    breakers: Breakers = field(default_factory=NoBreakers)
    builds: Builds = field(default_factory=NoBuilds)
    """Where runs go that this process cannot execute."""
    catalogs: Catalogs = field(default_factory=NoCatalogs)
    """Tools of servers, for agents that have some."""
    contexts: Mapping[tuple[str, str], RunContext] = field(default_factory=dict[tuple[str, str], RunContext])
    """By scope and run id: given by whoever drives the run in this process, instead of what its agent would make."""
    controls: KnownControls = field(default_factory=KnownControls)
    on_budget_warning: Callable[[BudgetWarning], object] | None = None
    """Told when a budget is nearly used up; what it does changes nothing."""
    chats: ChatStore | None = None
    """Of the application; None: chats are kept beside the runs."""
    signer: ApprovalSigner | None = None
    """Checks the tokens of approvals; None: they need none."""
    telemetry: Telemetry = field(default_factory=NoTelemetry)
    application: object = None
    """Which runs are executed for: where runs that their tools start are stored."""
    process: str = ""
    """Names this process in the leases that it claims, for people who ask where a run is: `host:pid`."""

    @staticmethod
    def known(run: Run) -> Known:
        """All of the run's saved history."""
        saved = run.envelope.last_seq - len(run.unsaved.messages)
        return Known(run.envelope.epoch, saved, run.step, run.compaction.number)
