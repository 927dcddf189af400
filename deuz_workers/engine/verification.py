"""Asking the verifier about a candidate: the form first, then the attempt is saved, then the verifier, then its verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from deuz_workers.core.decide import completed
from deuz_workers.core.effects import VerifyCandidate
from deuz_workers.core.events import Event, Finished, OutputRejected, VerificationEnded, VerificationStarted
from deuz_workers.core.failure import describe
from deuz_workers.engine.answer import Accepted, read_answer
from deuz_workers.engine.executing import execution_of
from deuz_workers.engine.leg import Leg, LoopEnd
from deuz_workers.engine.model_turn import run_end
from deuz_workers.engine.restraint import check_brakes
from deuz_workers.engine.user_code import Broken, LimitPassed
from deuz_workers.errors import DeadlinePassed
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.verify import Inconclusive, Rejected, Verified, VerifyContext

LABEL = "verify"


async def verify(leg: Leg, effect: VerifyCandidate) -> LoopEnd | None:
    """None: a cancel or the end of its time came before the verdict, and ends the run whatever that says (VER-008)."""
    agent = leg.definition
    assert isinstance(agent, AgentDefinition)
    assert agent.verify is not None
    await leg.check_may_start()
    answer = await candidate_of(leg, agent, effect.text)
    if not isinstance(answer, Accepted):
        return await saved(leg, answer)
    await leg.run_context(agent)
    if leg.ending_by_time(leg.run):
        return None
    await check_brakes(leg)
    await leg.commit(VerificationStarted())
    verdict = await verdict_of(leg, agent, answer.value, effect)
    if leg.ending_by_time(leg.run):
        return None
    if verdict.verdict != "verified":
        return await saved(leg, verdict)
    ending = await run_end(leg, completed(leg.run, answer.stored), leg.run)
    return None if leg.ending_by_time(leg.run) else await saved(leg, verdict, *ending)


async def saved(leg: Leg, *events: Event) -> LoopEnd:
    """A commit that a waiting cancel refuses where it would end the run; behind any other, the cancel is seen next."""
    await leg.commit(*events)
    return "ended" if leg.committer.run.envelope.is_final else "turn"


async def candidate_of(leg: Leg, agent: AgentDefinition, text: str) -> Accepted | Finished | OutputRejected:
    """The output that the text stands for; without an output type the text itself."""
    if agent.output is None:
        return Accepted(text, text)
    hooks = leg.hooks()
    await leg.about_to_ask(hooks.limit_ms, "output")
    return await read_answer(agent.output, text, hooks)


async def verdict_of(leg: Leg, agent: AgentDefinition, output: object, effect: VerifyCandidate) -> VerificationEnded:
    """What the verifier says, which has as long as a tool and no longer than the run.

    Raises `CancelFirst` when the run was cancelled meanwhile, `StepOver` when the lease is gone.
    """
    hooks = leg.hooks()
    given = await leg.run_context(agent)
    envelope, left_ms = leg.run.envelope, leg.head.ends_in_ms
    if left_ms is not None:
        left_ms = max(0, left_ms - leg.stop.elapsed_ms)
        hooks = replace(hooks, limit_ms=min(hooks.limit_ms, left_ms + 1))  # so that it has passed by then
    leg.hold_for(hooks.limit_ms, LABEL)
    signal = leg.stop.signal()
    context = VerifyContext(
        scope=envelope.scope,
        run_id=envelope.run_id,
        agent=envelope.agent,
        text=effect.text,
        attempt=effect.attempt,
        deadline_in_ms=left_ms,
        signal=signal,
        execution=execution_of(leg.gear.application, leg.head, leg.run, signal, leg.stop),
        messages=leg.run.history,
        deps=agent.deps,
        runtime_context=given.runtime,
    )
    assert agent.verify is not None
    try:
        return read_verdict(await hooks.ask(LABEL, agent.verify, output, context))
    except Broken as broken:
        return VerificationEnded("inconclusive", f"verify raised {describe(broken.error)}")
    except LimitPassed:
        signal.set(DeadlinePassed(f"the verifier took longer than {hooks.limit_ms} ms"))
        return VerificationEnded("inconclusive", f"verify took longer than {hooks.limit_ms} ms")
    finally:
        leg.stop.forget(signal)


def read_verdict(said: Any) -> VerificationEnded:
    """Anything but a verdict is an error of the verifier, which certifies nothing (VER-001, VER-007)."""
    match said:
        case Verified():
            return VerificationEnded("verified")
        case Rejected(str() as feedback):
            return VerificationEnded("rejected", feedback)
        case Inconclusive(None | str() as reason):
            return VerificationEnded("inconclusive", reason)
        case Rejected() | Inconclusive():
            return VerificationEnded("inconclusive", f"the text of verify's {type(said).__name__} is no string")
        case _:
            wrong = f"verify returned a {type(said).__name__}; return Verified, Rejected or Inconclusive"
            return VerificationEnded("inconclusive", wrong)
