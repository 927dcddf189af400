"""The rules of a conversation that every provider takes: each refusal, and what passes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deuz_workers.core.messages import (
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    assistant,
    message,
    system,
    user,
)
from deuz_workers.testing.conversations import conversation_problems, turns


def asks(*call_ids: str) -> Message:
    return message("assistant", [ToolUsePart(call_id, "look", {}, provider_call_id=f"p{call_id}") for call_id in call_ids])


def result(call_id: str) -> ToolResultPart:
    return ToolResultPart(call_id, "look", "seen", provider_call_id=f"p{call_id}")


def results(*call_ids: str) -> Message:
    return message("tool", map(result, call_ids))


WHOLE = (system("be brief"), user("go"), asks("a", "b"), results("a", "b"), user("and"), asks("a"), results("a"))


@pytest.mark.parametrize(
    "messages",
    [
        WHOLE,
        WHOLE[1:],
        (user("go"), user("now"), asks("a"), results("a"), user("by the way")),
        (user("go"), asks("a", "b"), results("b"), results("a")),
        (user([TextPart("look"), ImagePart("image/png", b"x")]),),
        (user("go"), message("assistant", [ReasoningPart("hm"), TextPart("well")]), user("again")),
    ],
)
def test_what_every_provider_takes_has_no_problem(messages: tuple[Message, ...]) -> None:
    """Results in any order, notes between turns, ids used again in a later turn, thoughts beside text."""
    assert conversation_problems(messages, is_request=True) == ()


def test_a_finished_run_ends_with_its_answer() -> None:
    """The record may end with a reply that calls nothing; a request may not, since nobody is left to answer."""
    messages = (*WHOLE, assistant("done"))
    assert conversation_problems(messages, is_request=False) == ()
    assert conversation_problems(messages, is_request=True) == ("it ends with a reply, so there is nothing to answer",)


BROKEN = {
    "was not answered before it": (user("go"), asks("a", "b"), results("a"), user("next")),
    "call 'b' was not answered": (user("go"), asks("a", "b"), results("a")),
    "openai: message 1: the reply has neither content nor calls": (
        user("go"),
        message("assistant", [ReasoningPart("hm")]),
        user("x"),
    ),
    "is answered twice": (user("go"), asks("a"), results("a", "a")),
    "'a' is answered twice": (user("go"), asks("a"), results("a"), results("a")),
    "the reply before did not call it": (user("go"), asks("a"), results("a", "z")),
    "did not call it": (user("go"), asks("a"), results("a"), user("x"), results("a")),
    "stands for two calls": (user("go"), asks("a", "a"), results("a")),
    "is answered for 'find'": (user("go"), asks("a"), message("tool", [replace(result("a"), name="find")])),
    "does not echo": (user("go"), asks("a"), message("tool", [replace(result("a"), provider_call_id=None)])),
    "the model answers itself": (user("go"), assistant("one"), assistant("two"), user("x")),
    "instructions stand behind the beginning": (user("go"), system("be brief")),
    "nobody says anything": (system("be brief"),),
    "a user message cannot hold a ToolResultPart": (user([result("a")]),),
    "a assistant message cannot hold a ToolResultPart": (user("go"), message("assistant", [result("a")]), user("x")),
    "anthropic: the model begins": (assistant("hello"), user("go")),
    "gemini: the model begins": (assistant("hello"), user("go")),
    "anthropic: turn 1: it has no content": (user("go"), assistant(""), user("again")),
    "anthropic: turn 2: a result stands behind other content": (user("go"), asks("a"), user("wait"), results("a")),
    "gemini: turn 1: 2 calls and 1 responses": (user("go"), asks("a", "b"), results("a")),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_each_problem_is_named(problem: str) -> None:
    """The sentence says where it is and, where only some refuse it, who."""
    found = conversation_problems(BROKEN[problem], is_request=True)
    assert any(problem in each for each in found), found


@pytest.mark.parametrize("left_out", range(1, len(WHOLE)))
def test_no_message_of_a_turn_can_be_left_out(left_out: int) -> None:
    """Cut out of a whole conversation, any message but a note leaves something that is refused."""
    messages = (*WHOLE[:left_out], *WHOLE[left_out + 1 :])
    found = conversation_problems(messages, is_request=True)
    assert bool(found) is (WHOLE[left_out] != user("and")), found


def test_results_belong_to_the_side_of_the_user() -> None:
    """Two sides take turns: messages in a row of one are one turn."""
    assert [(side, len(parts)) for side, parts in turns(WHOLE)] == [
        ("user", 1),
        ("model", 2),
        ("user", 3),
        ("model", 1),
        ("user", 1),
    ]
