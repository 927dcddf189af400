"""What is remembered of a run whose history hooks rewrote: what was said in it."""

from __future__ import annotations

from typing import Any

import pytest

from deuz_workers import Agent, Chat, CompactionPolicy, Guardrails, MockModel, Rewrite, StepInfo, StepPlan, tool
from deuz_workers.core.compaction import LEFT_OUT
from deuz_workers.core.envelope import decode_envelope
from deuz_workers.core.messages import user
from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.script import Entry, call, calls
from deuz_workers.store import open_store
from tests.app.remembering import Llm, facts, memory_of, says
from tests.app.world import World

TALK: tuple[dict[str, object], ...] = (
    {"role": "user", "content": "first question"},
    {"role": "assistant", "content": "first answer"},
    {"role": "user", "content": "earlier question"},
    {"role": "assistant", "content": "earlier answer"},
    {"role": "user", "content": "how is the river? 4711"},
)
RAILS = Guardrails(
    on_input=lambda text, context: Rewrite(text.replace("4711", "***")),
    on_output=lambda text, context: Rewrite(text.replace("secret", "hidden")),
)


def cut(info: StepInfo) -> StepPlan | None:
    """In the second turn only the newest three messages are left, the last user turn the first of them."""
    return StepPlan(messages=list(info.messages)[-3:]) if info.step == 2 else None


def cut_all(info: StepInfo) -> StepPlan:
    """Before every call only the newest message is left, said by the user."""
    return StepPlan(messages=[user(info.messages[-1].text or "go on")])


def left_alone(info: StepInfo) -> StepPlan | None:
    """The agent has the hook still, which leaves the history as it is."""
    return None


def looking(llm: Llm, *script: Entry, context_tokens: int | None = None, first: int = 1, times: int = 1, **given: Any) -> Agent:
    """Its tools are `look` and `pay`, which needs an approval; its script goes by the number of the turn, from `first` on."""

    def entry(request: ModelRequest) -> Entry:
        return script[int(request.request_id.split(":")[1]) - first]

    @tool
    async def look() -> str:
        return " ".join(["the river is high"] * times)

    @tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    model = MockModel.function(entry, context_window_tokens=context_tokens)
    return Agent("x", model=model, tools=[look, pay], memory=memory_of(llm), **given)


@pytest.mark.spec("MEM-012")
@pytest.mark.parametrize("chat", [None, Chat("c")])
async def test_what_a_hook_cut_away_was_said(world: World, chat: Chat | None) -> None:
    """The memory LLM reads the last user turn and all that the run said, whatever `prepare_step` left of it; input and answer
    as guardrails let them through."""
    llm = says(facts())
    app = world.process(
        looking(
            llm, calls(call("look")), calls(call("look").with_id("again")), "the secret", prepare_step=cut_all, guardrails=RAILS
        )
    )
    result = await app.aio.run_embedded("x", messages=TALK, run_id="r", chat=chat)
    assert (result.status, result.output) == ("completed", "the hidden")
    [(_, text)] = llm.asked
    looked = "tool look: the river is high\n\n"
    assert text == f"user: how is the river? ***\n\n{looked * 2}assistant: the hidden"


@pytest.mark.spec("MEM-012")
async def test_what_was_compacted_before_an_answer_is_rewritten_was_said(world: World) -> None:
    """A guardrail that rewrites the answer writes the shortened history anew; nothing of the run is missing for that."""
    llm = says(facts())
    script = [*(calls(call("look").with_id(f"c{n}")) for n in range(6)), "the secret"]
    compaction = CompactionPolicy(threshold=0.5, keep_turns=1, summarize=False)
    agent = looking(llm, *script, context_tokens=2_000, times=400, guardrails=RAILS, compaction=compaction)
    result = await world.process(agent).aio.run_embedded("x", messages=TALK, run_id="r")
    assert (result.status, result.output) == ("completed", "the hidden")
    assert decode_envelope(await world.head("r")).epoch > 1
    assert LEFT_OUT in [part.text for message in result.messages for part in message.tool_results]
    [(_, text)] = llm.asked
    looked = f"tool look: {' '.join(['the river is high'] * 400)}\n\n"
    assert text == f"user: how is the river? ***\n\n{looked * 6}assistant: the hidden"


@pytest.mark.spec("MEM-012")
@pytest.mark.parametrize("how", ["fork", "import"])
async def test_a_copy_remembers_of_what_it_has(world: World, how: str) -> None:
    """It has the messages of the newest rewrite on: what the hook left counts as given, and what follows as said."""
    llm = says(facts())
    script = (calls(call("look")), calls(call("look").with_id("again")), calls(call("pay").with_id("paying")))
    waiting = await world.process(looking(says(), *script, prepare_step=cut)).aio.run_embedded("x", messages=TALK, run_id="r")
    assert waiting.status == "suspended"
    agent = looking(llm, "the end", first=3 if how == "fork" else 4, prepare_step=left_alone)
    there = World("sqlite://:memory:", open_store("sqlite://:memory:"))
    try:
        if how == "fork":
            app = world.process(agent)
            await app.aio.fork("r", 2, new_run_id="copy")
            result = await app.aio.resume_embedded("copy")
        else:
            app = there.process(agent)
            await app.store.check_schema()
            handle = await app.aio.import_run(await world.process().aio.export_run("r"))
            await handle.retry()
            [item] = await handle.pending()
            result = await app.aio.resume_embedded("r", approvals={item.approval_id: True})
    finally:
        await there.close()
    assert (result.status, result.output) == ("completed", "the end")
    [(_, text)] = llm.asked
    paid = "tool pay: paid\n\n" if how == "import" else ""
    assert text == f"user: how is the river? 4711\n\ntool look: the river is high\n\n{paid}assistant: the end"
