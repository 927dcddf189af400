"""Any mix of candidates, verdicts and deaths: the verifier is asked as often as it may be, the end is that without deaths."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deuz_workers.core.change import Change, Outcome
from deuz_workers.core.limits import Limits
from deuz_workers.core.run import Run
from deuz_workers.errors import RevisionConflictError
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.model import ModelRequest
from deuz_workers.ports.store import Known, Loaded
from deuz_workers.ports.verify import Inconclusive, Rejected, Verified, VerifyContext
from deuz_workers.providers.mock import MockModel
from deuz_workers.testing.lying_leases import LyingLeases
from deuz_workers.testing.simulation import SCOPE, Process, Simulation
from deuz_workers.tools.output import Output
from tests.outcome import outcome_of

KINDS = ("invalid", "rejected", "inconclusive", "raises", "verified", "nonsense")
"""Of a candidate: of the wrong form, or of the right one and then judged so."""


@dataclass
class Bench:
    """An agent whose model gives the candidates of `script`, one after the other, and a verifier that reads them."""

    script: tuple[str, ...]
    limits: Limits
    typed: bool = True
    asked: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """Texts and attempts; a list that every process sees."""

    def verify(self, output: object, context: VerifyContext) -> object:
        assert (output["kind"] if isinstance(output, dict) else output) in context.text  # pyright: ignore
        self.asked.append((context.text, context.attempt))
        kind = next(kind for kind in KINDS if kind in context.text)
        match kind:
            case "verified":
                return Verified()
            case "rejected":
                return Rejected("no")
            case "inconclusive":
                return Inconclusive("who knows")
            case "raises":
                raise ValueError(context.text)
            case _:
                return kind

    def answer(self, request: ModelRequest) -> str:
        place = sum(message.role == "assistant" for message in request.messages)
        kind = self.script[place] if place < len(self.script) else "verified"
        if not self.typed:
            return f"{place} {kind}"
        return f"{place} {kind}" if kind == "invalid" else f'{{"kind": "{kind}", "place": {place}}}'

    async def play(self, deaths: frozenset[int]) -> tuple[Run, Simulation]:
        output = Output({"type": "object", "required": ["kind"]}, validate=lambda value: value) if self.typed else None
        made = AgentDefinition("a", MockModel.function(self.answer), limits=self.limits, output=output, verify=self.verify)
        simulation = Simulation({"a": made}, deaths)
        await simulation.enqueue("a", "r")
        return await simulation.run("r"), simulation


def end_of(run: Run) -> dict[str, object]:
    envelope = run.envelope
    left = (run.is_mid_step, envelope.phase, envelope.checkpoint.output_attempts)
    return outcome_of(run) | {"details": envelope.stop_details, "left": left}


SCRIPTS = st.lists(st.sampled_from(KINDS), max_size=5).map(tuple)
DEATHS = st.frozensets(st.integers(0, 50), max_size=4)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SCRIPTS, DEATHS, st.booleans())
def test_deaths_change_neither_answer_nor_ending(script: tuple[str, ...], deaths: frozenset[int], typed: bool) -> None:
    """With attempts enough for every death: the same end, history, step and repairs, and no question about another text."""
    limits = Limits(max_verify_attempts=20, max_output_attempts=2)
    quiet = Bench(script, limits, typed)
    calm, _ = asyncio.run(quiet.play(frozenset()))
    bench = Bench(script, limits, typed)
    run, simulation = asyncio.run(bench.play(deaths))
    assert end_of(run) == end_of(calm)
    assert len(bench.asked) <= len(quiet.asked) + simulation.deaths_met
    assert [text for text, _ in quiet.asked] == list(dict.fromkeys(text for text, _ in bench.asked))
    attempts = [attempt for _, attempt in bench.asked]
    assert attempts == sorted(set(attempts))
    assert run.envelope.checkpoint.verify_attempts <= len(quiet.asked) + simulation.deaths_met


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SCRIPTS, DEATHS, st.booleans(), st.integers(1, 3))
def test_the_verifier_is_never_asked_more_often_than_allowed(
    script: tuple[str, ...], deaths: frozenset[int], typed: bool, most: int
) -> None:
    """However often its processes die: the run ends, as it would have, or because its attempts were used up on the way."""
    limits = Limits(max_verify_attempts=most, max_output_attempts=2)
    calm, _ = asyncio.run(Bench(script, limits, typed).play(frozenset()))
    bench = Bench(script, limits, typed)
    run, _ = asyncio.run(bench.play(deaths))
    assert len(bench.asked) <= run.envelope.checkpoint.verify_attempts <= most
    assert end_of(run) == end_of(calm) or run.envelope.reason == "verification-attempts-exhausted"
    assert (run.envelope.status == "completed") == run.envelope.has_output
    assert run.envelope.status != "completed" or "verified" in run.history[-1].text


def test_one_death_at_every_single_point() -> None:
    """invalid, rejected, verified: whichever moment a process dies at, one question more at most."""
    script, limits = ("invalid", "rejected", "verified"), Limits(max_verify_attempts=3)
    calm, simulation = asyncio.run(Bench(script, limits).play(frozenset()))
    for point in range(simulation.points):
        bench = Bench(script, limits)
        run, met = asyncio.run(bench.play(frozenset({point})))
        assert (met.deaths_met, end_of(run)) == (1, end_of(calm)), simulation.places[point]
        inside = simulation.places[point].startswith(("before verify", "after verify"))
        assert run.envelope.checkpoint.verify_attempts >= 2 + inside, simulation.places[point]
        assert run.envelope.checkpoint.verify_attempts <= 3


async def test_of_two_executors_before_one_verification_one_asks_the_verifier() -> None:
    """A process died in the verifier, and two others were granted the run: both stand before the commit that counts the next
    attempt. The verifier is asked once more, one executor has a conflict."""
    bench = Bench((), Limits())
    output = Output({"type": "object", "required": ["kind"]}, validate=lambda value: value)
    made = AgentDefinition("a", MockModel.function(bench.answer), output=output, verify=bench.verify)
    simulation = Simulation({"a": made}, leases=LyingLeases())
    await simulation.enqueue("a", "r")
    await simulation.step_until_death("r", "before verify 1")
    store = simulation.store
    dead = await store.load(SCOPE, "r")
    assert dead is not None
    load, commit = store.load, store.commit
    loaded, counting = asyncio.Barrier(2), asyncio.Barrier(2)

    async def load_together(scope: str, run_id: str, known: Known | None = None) -> Loaded | None:
        found = await load(scope, run_id, known)
        await loaded.wait()
        return found

    async def commit_together(change: Change) -> Outcome:
        if change.expected == dead.head.revision:
            await counting.wait()
        return await commit(change)

    store.load, store.commit = load_together, commit_together
    async with asyncio.timeout(30):
        reports = await asyncio.gather(*(Process(simulation).engine.step(SCOPE, "r", alone=True) for _ in range(2)))
    store.load = load
    [loser] = [report for report in reports if report.end == "over"]
    assert isinstance(loser.error, RevisionConflictError)
    run = await simulation.load("r")
    assert (run.envelope.status, run.envelope.checkpoint.verify_attempts) == ("completed", 2)
    assert [attempt for _, attempt in bench.asked] == [2]


@pytest.mark.parametrize("typed", [True, False])
async def test_a_verified_answer_costs_one_commit_more(typed: bool) -> None:
    """Reservation, reply, attempt, verdict with the end; a text is saved together with its first attempt."""
    bench = Bench((), Limits(), typed)
    run, simulation = await bench.play(frozenset())
    assert run.envelope.status == "completed"
    commits = [place for place in simulation.places if place.startswith("before commit")]
    assert len(commits) == run.envelope.revision == (4 if typed else 3)
