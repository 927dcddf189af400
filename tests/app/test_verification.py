"""Answers that a verifier has to accept: typed ones and texts, its three verdicts, its failures, and refused saves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from deuz_workers import (
    Agent,
    Block,
    ConfigurationError,
    ExecutionPolicy,
    GuardContext,
    Guardrails,
    Inconclusive,
    Limits,
    MockModel,
    Output,
    Rejected,
    Rewrite,
    RunContext,
    RunFacts,
    StepInfo,
    Verified,
    VerifyContext,
    resume_agent,
    run_agent,
    tool,
)
from deuz_workers.providers.script import Entry, call, calls, reply
from deuz_workers.testing.crashing_store import CrashingStore, ProcessDied
from tests.app.world import World
from tests.fake_clock import FakeClock


class Answer(BaseModel):
    n: int


RIGHT, WRONG, INVALID = '{"n": 42}', '{"n": 41}', '{"m": 42}'


@dataclass
class Verifier:
    """Says what `verdicts` say, one after the other and then the last one for ever; remembers what it was asked."""

    verdicts: list[Any]
    asked: list[tuple[Any, VerifyContext]] = field(default_factory=list[tuple[Any, VerifyContext]])

    async def __call__(self, output: Any, context: VerifyContext) -> Any:
        self.asked.append((output, context))
        verdict = self.verdicts[min(len(self.asked), len(self.verdicts)) - 1]
        if isinstance(verdict, BaseException):
            raise verdict
        return verdict

    @property
    def texts(self) -> list[str]:
        return [context.text for _, context in self.asked]


def says(*verdicts: Any) -> Verifier:
    return Verifier(list(verdicts))


@tool
async def look() -> str:
    return "seen"


def agent(verify: Any, *script: Entry, output: Any = Answer, tools: bool = False, **given: Any) -> Agent:
    model = MockModel(script)
    return Agent("x", model=model, tools=[look] if tools else [], output_type=output, verify=verify, **given)


def model_of(made: Agent) -> MockModel:
    assert isinstance(made.model, MockModel)
    return made.model


def seven(facts: RunFacts) -> RunContext:
    return RunContext(runtime=7)


@pytest.mark.spec("VER-001", "VER-002")
@pytest.mark.parametrize("output", [Answer, None])
async def test_a_verifier_is_told_everything_and_its_word_completes_the_run(world: World, output: Any) -> None:
    """Output as validated, run id, text of the candidate, number of the attempt, execution context and cancel signal."""
    verify = says(Verified())
    made = agent(verify, "seen", RIGHT, tools=True, output=output, deps="deps", make_context=seven)
    text = RIGHT if output else "seen"
    result = await run_agent(made, "go", store=world.store, run_id="r")
    assert (result.status, result.output, result.text) == ("completed", Answer(n=42) if output else "seen", text)
    [(value, context)] = verify.asked
    assert (value, type(value)) == (result.output, type(result.output))
    assert (context.run_id, context.scope, context.agent, context.text, context.attempt) == ("r", "default", "x", text, 1)
    assert (context.signal.is_set, context.execution.limits, context.deadline_in_ms) == (False, Limits(), None)
    assert (context.deps, context.runtime_context, context.messages[-1].text) == ("deps", 7, text)
    assert (await world.process(made).aio.handle("r").result(5)).output == result.output


async def test_a_verifier_is_told_the_policy_of_the_run(world: World) -> None:
    """As its tools are: what it runs in turn may do no more than the run."""
    verify, policy = says(Verified()), ExecutionPolicy(allowed_tools={"look"}, required_approvals={"pay"})
    result = await run_agent(agent(verify, "seen", output=None), "go", store=world.store, run_id="r", policy=policy)
    [(_, context)] = verify.asked
    assert (result.status, context.execution.policy) == ("completed", policy)


@pytest.mark.spec("VER-003")
async def test_a_rejected_answer_is_asked_for_again_with_the_feedback(world: World) -> None:
    """As a user turn behind the answer; the next one that is verified completes the run."""
    verify = says(Rejected("one more, please"), Verified())
    made = agent(verify, WRONG, RIGHT)
    result = await run_agent(made, "go", store=world.store, run_id="r")
    assert (result.status, result.output, result.steps) == ("completed", Answer(n=42), 2)
    first, second = model_of(made).requests
    assert [message.role for message in second.messages] == ["user", "assistant", "user"]
    assert (second.messages[1].text, "one more, please" in second.messages[2].text) == (WRONG, True)
    assert (second.tool_choice, second.output_format) == (first.tool_choice, first.output_format)
    assert [context.attempt for _, context in verify.asked] == [1, 2]


async def test_a_run_without_an_output_type_goes_on_in_its_loop_after_a_rejection(world: World) -> None:
    """The model may use its tools again, to find out what was wrong; the text that follows is the next candidate."""
    verify = says(Rejected("look again"), Verified())
    prepared: list[int] = []

    def prepare(info: StepInfo) -> None:
        prepared.append(info.step)

    made = agent(verify, "42", calls(call("look")), "43", output=None, tools=True, prepare_step=prepare)
    result = await run_agent(made, "go", store=world.store, run_id="r")
    assert (result.status, result.output, verify.texts, prepared) == ("completed", "43", ["42", "43"], [1, 2, 3])
    assert [request.tool_choice for request in model_of(made).requests] == ["auto"] * 3


@pytest.mark.spec("VER-004", "VER-009")
@pytest.mark.parametrize("output", [Answer, None])
async def test_an_inconclusive_verdict_stops_the_run_without_certifying_anything(world: World, output: Any) -> None:
    """The answer has the right form, yet there is no output; the model is not asked again; the text can be read."""
    for reason in ("the oracle sleeps", None):
        made = agent(says(Inconclusive(reason)), RIGHT, output=output)
        result = await run_agent(made, "go", store=world.store)
        assert (result.status, result.reason, result.value) == ("stopped", "verification-inconclusive", None)
        assert result.stop_details == (None if reason is None else {"reason": reason})
        with pytest.raises(Exception, match="has no output"):
            _ = result.output
        assert (result.text, len(model_of(made).requests)) == (RIGHT, 1)


@pytest.mark.spec("VER-006", "RES-013")
async def test_a_verifier_that_always_rejects_stops_the_run(world: World) -> None:
    """After three candidates, where nothing else is said, each asked for once; the last feedback is in the details."""
    verify = says(Rejected("no"), Rejected("no"), Rejected("never"))
    made = agent(verify, WRONG, WRONG, WRONG, RIGHT)
    result = await run_agent(made, "go", store=world.store, run_id="r")
    assert (result.status, result.reason) == ("stopped", "verification-attempts-exhausted")
    assert result.stop_details == {"max_verify_attempts": 3, "feedback": "never"}
    assert (len(verify.asked), len(model_of(made).requests)) == (3, 3)
    envelope = await world.process(made).aio.handle("r").envelope()
    assert (envelope.checkpoint.verify_attempts, envelope.phase) == (3, "finalizing")


@pytest.mark.spec("FIN-008")
async def test_a_rejection_starts_a_fresh_allowance_of_repairs(world: World) -> None:
    """Two attempts: invalid, invalid stops the run; invalid, valid, rejected, invalid, valid completes after four answers."""
    verify = says(Verified())
    made = agent(verify, INVALID, INVALID, RIGHT)
    result = await run_agent(made, "go", store=world.store)
    assert (result.reason, len(model_of(made).requests), verify.asked) == ("output-attempts-exhausted", 2, [])
    verify = says(Rejected("no"), Verified())
    made = agent(verify, INVALID, WRONG, INVALID, RIGHT)
    result = await run_agent(made, "go", store=world.store)
    assert (result.status, result.output) == ("completed", Answer(n=42))
    assert (len(model_of(made).requests), verify.texts) == (4, [WRONG, RIGHT])


SEVEN: Any = 7
NO_VERDICTS = [None, True, "verified", Verified, {"status": "verified"}, Rejected(SEVEN), Inconclusive(SEVEN)]


class TestFailures:
    """What a verifier does beside giving a verdict."""

    @pytest.mark.spec("VER-007")
    @pytest.mark.parametrize("output", [Answer, None])
    async def test_an_exception_certifies_nothing(self, world: World, output: Any) -> None:
        """Plain raise: stopped, no output, the model is not asked again."""
        made = agent(says(ValueError("no network")), RIGHT, output=output)
        result = await run_agent(made, "go", store=world.store)
        assert (result.status, result.reason, result.value) == ("stopped", "verification-inconclusive", None)
        assert result.stop_details == {"reason": "verify raised ValueError: no network"}
        assert len(model_of(made).requests) == 1

    @pytest.mark.spec("VER-001")
    @pytest.mark.parametrize("said", NO_VERDICTS)
    async def test_whatever_is_no_verdict_is_an_error_of_the_verifier(self, world: World, said: Any) -> None:
        """It is inconclusive, and the details say what was returned and what should be."""

        def verify(output: object, context: VerifyContext) -> object:
            return said

        made = agent(verify, RIGHT)
        result = await run_agent(made, "go", store=world.store)
        assert (result.status, result.reason) == ("stopped", "verification-inconclusive")
        assert "verify" in str((result.stop_details or {})["reason"])
        assert len(model_of(made).requests) == 1

    async def test_it_is_ended_at_its_limit(self, memory: World) -> None:
        """That of a tool; a function in a thread sees it by the signal that it was given."""
        told: list[str] = []
        ended = threading.Event()

        def verify(output: object, context: VerifyContext) -> Verified:
            told.append(str(context.signal.wait(10_000)))
            ended.set()
            return Verified()

        result = await run_agent(agent(verify, RIGHT, limits=Limits(tool_timeout_ms=20)), "go", store=memory.store)
        assert result.stop_details == {"reason": "verify took longer than 20 ms"}
        await asyncio.to_thread(ended.wait, 10)
        assert told == ["True"]

    async def test_it_cannot_change_what_is_stored(self, world: World) -> None:
        """The output is stored as it was before the verifier had it in its hands."""

        def verify(output: list[int], context: VerifyContext) -> Verified:
            output.clear()
            return Verified()

        made = agent(verify, '{"value": [1, 2]}', output=list[int])
        assert (await run_agent(made, "go", store=world.store)).output == [1, 2]

    async def test_an_output_that_cannot_be_stored_is_not_verified(self, memory: World) -> None:
        """The run fails before anybody is asked."""
        verify = says(Verified())
        made = agent(verify, RIGHT, output=Output(Answer, validate=lambda value: object()))
        result = await run_agent(made, "go", store=memory.store)
        assert (result.status, (result.error or {})["name"], verify.asked) == ("failed", "OutputError", [])

    def test_it_has_to_be_a_function(self) -> None:
        """Refused where the agent is made."""
        with pytest.raises(ConfigurationError, match="verify is a function"):
            agent("yes")


VERDICTS: dict[str, Callable[[], Any]] = {"verified": Verified, "rejected": lambda: Rejected("no")}


@pytest.mark.spec("VER-007", "VER-008")
@pytest.mark.parametrize("said", ["verified", "rejected", "raises"])
@pytest.mark.parametrize("output", [Answer, None])
@pytest.mark.parametrize("sync", [True, False])
async def test_a_cancel_comes_before_the_verdict(world: World, said: str, output: Any, sync: bool) -> None:
    """Whatever the verifier says after somebody cancelled the run: stopped as `aborted`, and no further model call."""

    def answer() -> object:
        if said == "raises":
            raise ValueError("cancelled")
        return VERDICTS[said]()

    async def verify(output: object, context: VerifyContext) -> object:
        await world.process().aio.handle("r").cancel("enough")
        return answer()

    def verify_in_thread(output: object, context: VerifyContext) -> object:
        asyncio.run_coroutine_threadsafe(world.process().aio.handle("r").cancel("enough"), loop).result()
        return answer()

    loop = asyncio.get_running_loop()
    made = agent(verify_in_thread if sync else verify, WRONG, RIGHT, output=output)
    result = await run_agent(made, "go", store=world.store, run_id="r")
    assert (result.status, result.reason, result.value) == ("stopped", "aborted", None)
    assert (result.stop_details, len(model_of(made).requests)) == ({"cancel_reason": "enough"}, 1)
    assert not (await world.head("r")).mid_step


async def test_behind_a_cancel_the_verifier_is_not_asked(world: World) -> None:
    """Somebody cancels while the form of the answer is checked: the commit that would record the attempt is refused."""
    verify = says(Verified())

    def check(value: Answer) -> None:
        asyncio.run_coroutine_threadsafe(world.process().aio.handle("r").cancel(), loop).result()

    loop = asyncio.get_running_loop()
    made = agent(verify, RIGHT, output=Output(Answer, validate=check))
    result = await run_agent(made, "go", store=world.store, run_id="r")
    assert (result.reason, verify.asked) == ("aborted", [])
    assert (await world.process(made).aio.handle("r").envelope()).checkpoint.verify_attempts == 0


async def test_a_cancel_ends_a_verifier_that_waits(memory: World) -> None:
    """Its coroutine is cancelled, and the signal that it may have handed on is set."""
    begun, ended = asyncio.Event(), asyncio.Event()
    contexts: list[VerifyContext] = []

    async def verify(output: object, context: VerifyContext) -> Verified:
        contexts.append(context)
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return Verified()

    app = memory.process(agent(verify, RIGHT))
    running = asyncio.ensure_future(app.aio.run_embedded("x", "go", run_id="r"))
    await begun.wait()
    await app.aio.handle("r").cancel()
    result = await running
    assert (result.reason, ended.is_set(), contexts[0].signal.is_set) == ("aborted", True, True)


@pytest.mark.spec("VER-007", "VER-008")
@pytest.mark.parametrize("said", ["verified", "rejected", "raises"])
@pytest.mark.parametrize("output", [Answer, None])
async def test_an_elapsed_deadline_comes_before_the_verdict(world: World, said: str, output: Any) -> None:
    """Whatever it says after the time of the run: failed with `ExecutionPolicyError`, and no further model call."""

    def verify(output: object, context: VerifyContext) -> object:
        assert context.deadline_in_ms is not None
        clock.advance(context.deadline_in_ms)
        if said == "raises":
            raise ValueError("too late")
        return VERDICTS[said]()

    made, clock = agent(verify, WRONG, RIGHT, output=output), FakeClock()
    app = world.process(made)
    app.clock = clock
    result = await app.aio.run_embedded("x", "go", run_id="r", deadline=timedelta(minutes=10))
    assert (result.status, (result.error or {})["name"]) == ("failed", "ExecutionPolicyError")
    assert ((result.error or {})["code"], len(model_of(made).requests)) == ("deadline_exceeded", 1)
    assert not (await world.head("r")).mid_step


@pytest.mark.parametrize("late", ["validate", "on_output"])
async def test_a_deadline_that_passes_beside_the_verifier_ends_the_run(world: World, late: str) -> None:
    """Before it, in the check of the form, the verifier is not asked; behind it, in a guardrail, its word is of no use."""
    verify, clock = says(Verified()), FakeClock()

    def passes(value: Any, context: GuardContext | None = None) -> Any:
        if late == ("validate" if context is None else "on_output"):
            clock.advance(600_000)
        return None if context else value

    made = agent(verify, RIGHT, output=Output(Answer, validate=passes), guardrails=Guardrails(on_output=[passes]))
    app = world.process(made)
    app.clock = clock
    result = await app.aio.run_embedded("x", "go", deadline=timedelta(minutes=10))
    assert (result.status, (result.error or {})["code"]) == ("failed", "deadline_exceeded")
    assert len(verify.asked) == (0 if late == "validate" else 1)


async def test_a_deadline_ends_a_verifier_that_waits(memory: World) -> None:
    """Its time is what is left of the run's, so that a run is never late by a verifier's limit."""

    async def verify(output: object, context: VerifyContext) -> None:
        await asyncio.Event().wait()

    made = agent(verify, RIGHT)
    result = await run_agent(made, "go", store=memory.store, deadline=timedelta(milliseconds=200))
    assert (result.status, (result.error or {})["code"]) == ("failed", "deadline_exceeded")


TYPED_START, TYPED_VERDICT = 3, 4
"""The commits of a typed run without tools that record an attempt and a verdict, behind reservation and reply."""


class TestRefusedSaves:
    """A store that refuses the save behind a verdict, and legs that follow."""

    async def refuse(self, world: World, made: Agent, at: int = TYPED_VERDICT) -> None:
        store = CrashingStore(world.store, at, error=RuntimeError("disk full"))
        result = await world.process(made, store=store.as_store).aio.run_embedded("x", "go", run_id="r")
        assert (result.status, store.commits) == ("failed", at)
        await world.later(60_000)

    @pytest.mark.spec("VER-010", "VER-012", "STF-007")
    async def test_the_verifier_is_asked_again_and_the_model_is_not(self, world: World) -> None:
        """Stored phase `finalizing` in between; both times the same run id and text, and another attempt."""
        verify = says(Verified())
        made = agent(verify, RIGHT)
        await self.refuse(world, made)
        head = await world.head("r")
        assert (head.status, head.phase, head.mid_step) == ("running", "finalizing", True)
        result = await world.process(made).aio.resume_embedded("r")
        assert (result.status, result.output) == ("completed", Answer(n=42))
        assert len(model_of(made).requests) == 1
        (_, first), (_, second) = verify.asked
        assert (first.run_id, first.text, first.idempotency_key) == (second.run_id, second.text, second.idempotency_key)
        assert (first.attempt, second.attempt) == (1, 2)

    @pytest.mark.spec("VER-011")
    async def test_the_repeat_uses_an_attempt_up_and_without_one_the_run_ends(self, world: World) -> None:
        """Limit 1, verdict `verified`, failed write: the resume ends as exhausted, and the verifier is not asked."""
        verify = says(Verified())
        made = agent(verify, RIGHT, limits=Limits(max_verify_attempts=1))
        await self.refuse(world, made)
        result = await world.process(made).aio.resume_embedded("r")
        assert (result.status, result.reason) == ("stopped", "verification-attempts-exhausted")
        assert (len(verify.asked), len(model_of(made).requests)) == (1, 1)

    async def test_an_attempt_that_could_not_be_recorded_asks_nobody(self, world: World) -> None:
        """Nothing without a commit before it: the verifier hears of the candidate when its attempt is saved."""
        verify = says(Verified())
        made = agent(verify, RIGHT)
        await self.refuse(world, made, at=TYPED_START)
        assert verify.asked == []
        result = await world.process(made).aio.resume_embedded("r")
        assert (result.status, [context.attempt for _, context in verify.asked]) == ("completed", [1])

    @pytest.mark.spec("VER-005")
    async def test_the_limit_holds_over_any_number_of_legs(self, world: World) -> None:
        """Three legs that die in the verifier, and two more: it was asked three times."""
        verify = says(ProcessDied())
        made = agent(verify, RIGHT)
        with pytest.raises(ProcessDied):
            await world.process(made).aio.run_embedded("x", "go", run_id="r")
        for _ in range(2):
            await world.later(600_000)
            with pytest.raises(ProcessDied):
                await world.process(made).aio.resume_embedded("r")
        results = [await world.process(made).aio.resume_embedded("r") for _ in range(2)]
        assert {result.reason for result in results} == {"verification-attempts-exhausted"}
        assert ([context.attempt for _, context in verify.asked], len(model_of(made).requests)) == ([1, 2, 3], 1)

    @pytest.mark.parametrize("output", [Answer, None])
    async def test_every_death_leads_to_the_same_end(self, world: World, output: Any) -> None:
        """Before and after each commit of a run with a rejected candidate: one output, a valid conversation, two model calls,
        and no more questions than attempts."""
        for at in range(1, 20):
            for applied in (False, True):
                run_id = f"r{at}{applied}"
                verify = Verifier([])

                async def judge(value: Any, context: VerifyContext) -> object:
                    verify.asked.append((value, context))  # noqa: B023 - asked in this round of the loop
                    return Verified() if "42" in context.text else Rejected("no")

                made = agent(judge, WRONG, RIGHT, output=output, limits=Limits(max_verify_attempts=4))
                try:
                    await world.dying(made, at=at, applied=applied).aio.run_embedded("x", "go", run_id=run_id)
                except ProcessDied:
                    pass
                else:
                    assert at > 5
                    return
                result = await world.process(made).aio.resume_embedded(run_id)
                assert (result.status, result.text, result.steps) == ("completed", RIGHT, 2), (at, applied)
                roles = [message.role for message in result.messages]
                assert roles == ["user", "assistant", "user", "assistant"], (at, applied)
                assert 2 <= len(verify.asked) <= 3
                assert len({context.attempt for _, context in verify.asked}) == len(verify.asked)
        pytest.fail("the run has more commits than it should")


class TestOrder:
    """Form, verification, guardrails."""

    @pytest.mark.spec("GRD-007")
    async def test_guardrails_of_the_answer_run_once_it_is_verified(self, world: World) -> None:
        """They see accepted answers alone, and what they make of one is not verified again, as it is theirs."""
        seen: list[str] = []

        def shout(text: str, context: GuardContext) -> Rewrite:
            seen.append(text)
            return Rewrite(text.upper())

        verify = says(Rejected("no"), Verified())
        made = agent(verify, "one", "two", output=None, guardrails=Guardrails(on_output=[shout]))
        result = await run_agent(made, "go", store=world.store, run_id="r")
        assert (result.output, result.text, seen, verify.texts) == ("TWO", "TWO", ["two"], ["one", "two"])
        assert (await resume_agent(made, "r", store=world.store)).messages[-1].text == "TWO"

    async def test_a_verified_answer_may_still_be_suppressed(self, world: World) -> None:
        """The last word is the guardrail's."""
        made = agent(says(Verified()), RIGHT, guardrails=Guardrails(on_output=[lambda text, context: Block("secret")]))
        result = await run_agent(made, "go", store=world.store)
        assert (result.status, result.reason) == ("stopped", "guardrail:output")

    async def test_a_text_that_was_cut_off_says_so_when_it_is_verified(self, memory: World) -> None:
        """A verifier may accept it, and the details keep how it ended."""
        cut = reply("and then", finish_reason="length")
        result = await run_agent(agent(says(Verified()), cut, output=None), "go", store=memory.store)
        assert (result.status, result.stop_details) == ("completed", {"finish_reason": "length"})


async def test_a_process_whose_agent_has_no_verifier_completes_nothing(world: World) -> None:
    """A run that began with one is refused there, as with another model, and goes on where its verifier is."""
    verify = says(ProcessDied(), Verified())
    made = agent(verify, RIGHT)
    with pytest.raises(ProcessDied):
        await world.process(made).aio.run_embedded("x", "go", run_id="r")
    await world.later(600_000)
    refused = await world.process(agent(None)).aio.resume_embedded("r")
    assert (refused.status, (refused.error or {})["code"]) == ("failed", "binding_changed")
    assert (await world.process(made).aio.resume_embedded("r")).output == Answer(n=42)
