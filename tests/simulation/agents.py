"""Random agents: everything that an agent can have, drawn from a number."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from deuz_workers.core.limits import Limits
from deuz_workers.core.messages import Message
from deuz_workers.errors import ModelError, ModelRateLimitedError, ModelTimeoutError, ModelUnavailableError
from deuz_workers.ports.compaction import CompactionPolicy
from deuz_workers.ports.definition import AgentDefinition, with_transfers
from deuz_workers.ports.guard import Block, GuardContext, Guardrails, Rewrite, StepInfo, StepPlan
from deuz_workers.ports.model import ModelRequest
from deuz_workers.ports.verify import Inconclusive, Rejected, Verified, VerifyContext
from deuz_workers.providers.mock import MockModel
from deuz_workers.providers.script import Entry, ScriptedCall, ScriptedReply, attempts, call, calls, raw_call, reply
from deuz_workers.testing.virtual.process import VirtualProcess
from deuz_workers.tools.output import Output
from deuz_workers.tools.transfer import transfer_tool
from tests.simulation.tools import TOOLS

GUARDED = "g"
"""How the names of agents with guardrails begin."""
REWRITTEN, BLOCKED, WITHHELD = 2, 5, 8
"""Amounts of a guarded agent that never reach a tool; and a result that never reaches its model."""
AMOUNTS = (0, 1, 2, 2, 2, 3, 4, 5, 6, 7, 8, 9)
MORE = 1_000
"""What people add to an amount that they change."""
DRAFT, DOUBTFUL = "draft", "perhaps"
"""Answers that a verifier rejects, and of which it cannot say anything."""
VERIFICATIONS = 15
"""A verifier is asked at most so often: more than any schedule needs where nobody dies in one."""
PLAIN = ("pay", "put", "put", "show", "tally", "stray", "unshown")
ASKING = ("wire", "ask", "both", "edit", "look", "peek")
NEEDED = {"wire": 1, "both": 2, "edit": 1, "soon": 1, "ask": 1, "peek": 1}
"""People who have to agree, by tool."""


def guarded_amount(agent: str, amount: int) -> int:
    """What a call of `agent` is asked for and begins with."""
    return amount + 100 if agent.startswith(GUARDED) and amount == REWRITTEN else amount


def is_denied(amount: int) -> bool:
    """Whether people refuse a call, all alike."""
    return amount % 5 == 4


def edited_amount(tool: str, amount: int) -> int:
    """What people make of an amount, all alike."""
    return amount + MORE if tool == "edit" and amount % 3 == 0 else amount


def needs_people(tool: str, amount: int) -> int:
    """How many have to agree to the call."""
    return 0 if tool == "ask" and amount % 2 == 0 else NEEDED.get(tool, 0)


def random_agent(draw: random.Random, name: str, *, soon: bool, fails: bool) -> AgentDefinition:
    """`soon`: some of its requests for approval expire. `fails`: its model is away for so long that its runs fail."""
    made = [_turn(draw, soon) for _ in range(draw.choice((1, 2, 2, 3, 4)))]
    if draw.random() < 0.1:
        cut = draw.choice(("length", "content_filter"))
        made.append(replace(made[-1], finish_reason=cut))  # none of its calls runs, and the run is over
    apart = random.Random(f"{name} {draw.getstate()[1][:8]}")  # so that agents without a team are what they were
    team = _team(apart, name)
    made = [_handing_over(apart, turn, (name, *team)) for turn in made] if team else made
    typed = draw.choice((None, None, "json", "tool"))
    verified = draw.random() < 0.3
    script: list[Entry] = [*made, reply(draw.choice((DRAFT, DOUBTFUL, "done", "done", "", " "))), reply("done")]
    if typed is not None:
        script = [*made, reply("done")]
        script += [_answer(draw, typed) for _ in range(4)] + [_final(typed, '{"total": 3}')]
    if fails:
        script = [attempts(*[ModelUnavailableError("away")] * draw.randint(1, 5), entry) for entry in script]
    elif draw.random() < 0.3:
        script = [attempts(ModelUnavailableError("busy"), entry) if draw.random() < 0.6 else entry for entry in script]
    names = ["first", *(f"other{number}" for number in range(1, draw.choice((1, 1, 1, 2, 3))))]
    models = _models(draw, names, tuple(script), len(made))
    prepare = draw.choice((None, None, forget, _offer_less))
    # A hook that cuts the history down would cut another one where a compaction came earlier.
    compaction = _compaction(draw) if prepare is not forget and draw.random() < 0.4 else None
    used = sorted({each.name for turn in made for each in turn.calls if each.name in TOOLS})
    agent = AgentDefinition(
        name,
        models[0],
        instructions="work",
        tools={tool: TOOLS[tool] for tool in used},
        limits=Limits(
            max_output_attempts=draw.randint(1, 3),
            max_verify_attempts=VERIFICATIONS,
            tool_concurrency=draw.choice((1, 2, 5)),
            max_retries=draw.randint(0, 1) if fails else draw.choice((1, 4)) if models[1:] else 4,
            max_reruns=draw.choice((0, 0, 2)) if fails else 0,
        ),
        verify=_verify if verified else None,
        output=None if typed is None else _OUTPUTS[typed],
        guardrails=_guardrails(draw) if name.startswith(GUARDED) else Guardrails(),
        prepare_step=prepare,
        stop_when={"enough": _enough} if draw.random() < 0.15 else {},
        fallback_models=tuple(models[1:]),
        compaction=compaction,
    )
    return _with_team(apart, agent, team, script, len(made)) if team else agent


def _team(draw: random.Random, name: str) -> tuple[str, ...]:
    """Names of those that some agents hand over to; they are guarded as these are."""
    return tuple(f"{name}-{number}" for number in range(1, draw.choice((1, 1, 1, 2, 3))))


def _handing_over(draw: random.Random, turn: ScriptedReply, names: Sequence[str]) -> ScriptedReply:
    """Up to two transfers at random places among its calls, also to whoever drives, which is no tool then."""
    asked = list(turn.calls)
    for _ in range(draw.choice((0, 1, 1, 2))):
        transfer = call(f"transfer_to_{draw.choice(names)}", reason="why")
        is_named = asked[0].provider_id == "same"
        asked.insert(draw.randint(0, len(asked)), transfer.with_id("same") if is_named else transfer)
    return replace(turn, calls=tuple(asked))


def _with_team(
    draw: random.Random, agent: AgentDefinition, names: Sequence[str], script: Sequence[Entry], turns: int
) -> AgentDefinition:
    """What is said in a turn does not depend on who says it, so that runs may be compared whoever drives them."""
    members: dict[str, AgentDefinition] = {}
    for name in names:
        gone = partial(_gone, script, draw.randint(1, turns + 1), draw.choice(GONE))
        goes = bool(agent.fallback_models) and draw.random() < 0.3
        model = MockModel.function(gone if goes else partial(_scripted, script), model=name)
        members[name] = AgentDefinition(name, model, instructions=f"work as {name}", tools=agent.tools)
    transfers = {name: transfer_tool(name) for name in (agent.name, *names)}
    limits = replace(agent.limits, max_handoffs=draw.choice((0, 1, 2, 5)))
    made = replace(agent, limits=limits, team=members, transfers=transfers)
    return replace(made, tools=with_transfers(made, agent.tools, agent.name))


def _compaction(draw: random.Random) -> CompactionPolicy:
    """Windows so small that every layer is reached within a few turns; some are too small for what is never left out."""
    return CompactionPolicy(
        context_window_tokens=draw.choice((60, 90, 120, 160, 220)),
        keep_turns=draw.choice((0, 1, 1, 2)),
        summarize=draw.random() < 0.8,
        summary_tokens=20,
    )


def _models(draw: random.Random, names: Sequence[str], script: Sequence[Entry], turns: int) -> list[MockModel]:
    """All but the last go away in some turn, for good; whoever answers says the same."""
    made: list[MockModel] = []
    for name in names[:-1]:
        gone = partial(_gone, script, draw.randint(1, turns + 1), draw.choice(GONE))
        made.append(MockModel.function(gone, model=name))
    return [*made, MockModel.function(partial(_scripted, script), model=names[-1])]


GONE = (
    ModelUnavailableError("away", status=503),
    ModelUnavailableError("overloaded", status=529),
    ModelTimeoutError("silent"),
    ModelRateLimitedError("slow down"),
    ModelRateLimitedError("slow down", retry_after_ms=60_000),
)
"""The last asks for a longer wait than anybody waits who has another model."""


def _gone(script: Sequence[Entry], since: int, error: ModelError, request: ModelRequest) -> Entry:
    return error if _step(request) >= since else _scripted(script, request)


def _step(request: ModelRequest) -> int:
    """Of the turn; 0 for a summary, which belongs to none."""
    place = request.request_id.split(":")[1]
    return 0 if place.startswith("s") else int(place)


def _scripted(script: Sequence[Entry], request: ModelRequest) -> Entry:
    """By the number of the turn, which a history that was cut down does not change."""
    step = _step(request)
    if not step:
        return attempts(ModelUnavailableError("busy"), "in short") if request.request_id.endswith("2") else "in short"
    return script[min(step, len(script)) - 1]


def _turn(draw: random.Random, soon: bool) -> ScriptedReply:
    asked = [_call(draw, soon) for _ in range(draw.choice((1, 1, 2, 3)))]
    if draw.random() < 0.1:
        asked = [each.with_id("same") for each in asked]
    return calls(*asked, text=draw.choice(("", "well")), usage=draw.choice(("default", "default", "default", None)))


def _call(draw: random.Random, soon: bool) -> ScriptedCall:
    kind, amount = draw.random(), draw.choice(AMOUNTS)
    if kind < 0.04:
        return call("ghost", amount=amount)
    if kind < 0.08:
        return raw_call("pay", '{"amount": ')
    if kind < 0.12:
        return call("put", amount="much")
    if kind < 0.18:
        return call("fail", amount=amount)
    if soon and kind < 0.35:
        return call("soon", amount=amount)
    return call(draw.choice(PLAIN if kind < 0.6 else ASKING), amount=amount)


def _answer(draw: random.Random, mode: str) -> Entry:
    return _final(mode, draw.choice(('{"total": 3}', '{"total": 2}', '{"total": "three"}', "three", '{"total": -1}')))


def _final(mode: str, text: str) -> Entry:
    if mode == "json":
        return reply(text)
    try:
        return calls(call("answer", **json.loads(text)))
    except ValueError:
        return calls(raw_call("answer", text))


def _positive(value: dict[str, int]) -> None:
    if value["total"] < 0:
        raise ValueError("the total is not negative")


_TOTAL = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
_OUTPUTS = {
    "json": Output(_TOTAL, validate=_positive, mode="json", name="answer"),
    "tool": Output(_TOTAL, validate=_positive, mode="tool", name="answer"),
}


async def _verify(output: object, context: VerifyContext) -> Verified | Rejected | Inconclusive:
    """Says the same of the same answer, whoever asks."""
    process: VirtualProcess = context.deps
    await process.point("before verify")
    process.world.counts["verify", context.run_id, context.attempt] += 1
    if process.world.counts["verify", context.run_id, context.attempt] > 1 or context.attempt > VERIFICATIONS:
        process.world.complain(f"attempt {context.attempt} to verify {context.run_id} was not counted")
    await process.world.work("verify")
    await process.point("after verify")
    if output in (DRAFT, {"total": 2}):
        return Rejected("it is a draft")
    return Inconclusive("who knows") if output == DOUBTFUL else Verified()


def _on_input(text: str, context: GuardContext) -> Rewrite | None:
    return Rewrite("go on") if text == "go" else None


def _on_call(arguments: dict[str, object], context: GuardContext) -> Rewrite | Block | None:
    amount = arguments.get("amount")
    if amount == BLOCKED:
        return Block("not five")
    return Rewrite({"amount": guarded_amount(context.agent, REWRITTEN)}) if amount == REWRITTEN else None


def _on_result(text: str, context: GuardContext) -> Rewrite | Block | None:
    if str(WITHHELD) in text:
        return Block("not eight")
    return Rewrite(text.replace("7", "seven")) if "7" in text else None


def _on_output(text: str, context: GuardContext) -> Rewrite | Block | None:
    return Rewrite("all done") if text == "done" else None


def _guardrails(draw: random.Random) -> Guardrails:
    """Of calls always, of the others some."""
    return Guardrails(
        on_input=(_on_input,) if draw.random() < 0.5 else (),
        on_tool_call=(_on_call,),
        on_tool_result=(_on_result,) if draw.random() < 0.5 else (),
        on_output=(_on_output,) if draw.random() < 0.5 else (),
    )


def forget(info: StepInfo) -> StepPlan | None:
    """From the third turn on only the first message and the newest turn are kept."""
    if info.step < 3:
        return None
    messages = list(info.messages)
    newest = max((place for place, each in enumerate(messages) if each.role == "assistant"), default=0)
    kept: list[Message] = [messages[0], *messages[max(newest, 1) :]]
    return StepPlan(messages=kept)


def _offer_less(info: StepInfo) -> StepPlan:
    return StepPlan(active_tools=("pay", "put", "nothing"))


def _enough(info: StepInfo) -> bool:
    return info.step >= 3
