"""What readers are told, as pure rules: parts as text and back, and their order."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deuz_workers.core.live import LivePart, decode_part, encode_parts, joined
from deuz_workers.core.live_order import LiveOrder
from deuz_workers.errors import CodecError


def part(epoch: int, kind: str = "commit", **data: object) -> LivePart:
    return LivePart(kind, 1, epoch, data)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("value", [None, 1.5, b"\x00", {"a": {1, 2}}, float("inf"), "x" * 100])
def test_a_part_comes_back_as_it_was(value: object) -> None:
    """Raw results of every type that is stored."""
    made = [part(3, "tool", call_id="c", tool="t", value=value), part(3, "text", text="\ud800")]
    assert [decode_part(text) for text in encode_parts(made, max_value_bytes=1_000)] == made


@pytest.mark.parametrize("value", ["x" * 100, object()])
def test_a_value_that_does_not_fit_is_left_to_its_receipt(value: object) -> None:
    """Because of its size, or because it cannot be written."""
    [text] = encode_parts([part(3, "tool", call_id="c", tool="t", value=value)], max_value_bytes=50)
    assert decode_part(text).data == {"call_id": "c", "tool": "t", "elsewhere": True}


@pytest.mark.parametrize(
    "text", ["", "{}", '["nothing",1,1,{}]', '["text","1",1,{}]', '["text",1,1]', '["guardrail",1,1,{"hook":"on_input"}]']
)
def test_what_is_no_part_is_refused(text: str) -> None:
    """Of another build, or nobody's."""
    with pytest.raises(CodecError):
        decode_part(text)


def test_fragments_of_one_call_are_joined_and_nothing_else() -> None:
    """Neither across calls nor over another part; a long text is cut."""
    made = [part(1, "text", text="a"), part(1, "text", text="b"), part(2), part(2, "text", text="c"), part(3, "text", text="d")]
    assert [(one.epoch, one.data.get("text")) for one in joined(made)] == [(1, "ab"), (2, None), (2, "c"), (3, "d")]
    long = list(joined([part(1, "text", text="x" * 20_000), part(1, "text", text="y" * 20_000)]))
    assert "".join(str(one.data["text"]) for one in long) == "x" * 20_000 + "y" * 20_000
    assert max(len(str(one.data["text"])) for one in long) == 16_000


def test_thoughts_and_arguments_are_joined_by_what_they_are_of() -> None:
    """Of one call each; fragments of two calls in turn stay apart, and come back from text as they were."""

    def arguments(place: int, text: str) -> LivePart:
        return part(1, "arguments", text=text, place=place, tool="pay")

    made = [part(1, "reasoning", text="a"), part(1, "reasoning", text="b"), part(1, "text", text="c")]
    made += [arguments(0, "{"), arguments(0, "}"), arguments(1, "["), arguments(0, "x")]
    told = list(joined(made))
    assert [(one.kind, one.data.get("place"), one.data["text"]) for one in told] == [
        ("reasoning", None, "ab"),
        ("text", None, "c"),
        ("arguments", 0, "{}"),
        ("arguments", 1, "["),
        ("arguments", 0, "x"),
    ]
    assert [decode_part(text) for text in encode_parts(told, max_value_bytes=100)] == told
    with pytest.raises(CodecError):
        decode_part('["arguments",1,1,{"text":"no tool"}]')


@pytest.mark.parametrize("path", ["null", "1", '"a"'])
def test_a_forwarded_part_without_a_path_ends_no_reader(path: str) -> None:
    """It is none of this build's, and lost like those; else whoever reads it would be told nothing more of the run."""
    with pytest.raises(CodecError):
        decode_part(f'["child",1,0,{{"path":{path},"run":"r","part":["text",1,1,{{"text":"x"}}]}}]')


@pytest.mark.parametrize("order", list(permutations(range(1, 5))))
def test_commits_are_shown_in_their_order_however_they_come(order: tuple[int, ...]) -> None:
    """Each is held back while an earlier one is missing, and none twice."""
    live, shown = LiveOrder(), list[int]()
    for epoch in order:
        shown += [one.epoch for one in live.take([part(epoch)])]
    assert shown == [1, 2, 3, 4]
    assert not live.is_waiting


def test_fragments_follow_the_commit_that_began_their_call() -> None:
    """Those of a process that was overtaken come before what overtook them."""
    live = LiveOrder()
    shown = live.take([part(1, "begin"), part(1, "text", text="a")])
    shown += live.take([part(3, "begin"), part(3, "text", text="c")])
    assert live.is_waiting
    shown += live.take([part(1, "text", text="b"), part(2, "reply")])
    assert [one.data.get("text") for one in shown] == [None, "a", "b", None, None, "c"]
    assert not live.is_waiting


def test_a_part_that_does_not_come_is_given_up_and_said_to_be_lost() -> None:
    """What was held back is shown behind that, in order; a later gap is another one."""
    live = LiveOrder(3)
    assert live.take([part(6), part(5), part(8)]) == []
    assert [(one.kind, one.epoch) for one in live.give_up()] == [("lost", 0), ("commit", 5), ("commit", 6)]
    assert [(one.kind, one.epoch) for one in live.give_up()] == [("lost", 0), ("commit", 8)]
    assert live.give_up() == []


def test_what_a_late_reader_came_after_is_not_waited_for() -> None:
    """Parts of the revision it came at are shown, and the next one is expected."""
    live = LiveOrder()
    live.came_at(7)
    assert [one.epoch for one in live.take([part(7), part(8)])] == [7, 8]


@given(st.permutations(list(range(1, 9))), st.sets(st.integers(1, 8)))
def test_whatever_is_lost_the_rest_is_shown_once_and_in_order(order: list[int], lost: set[int]) -> None:
    """And every loss that something follows is said."""
    live, shown = LiveOrder(), list[LivePart]()
    for epoch in order:
        if epoch not in lost:
            shown += live.take([part(epoch)])
    while live.is_waiting:
        shown += live.give_up()
    epochs = [one.epoch for one in shown if one.kind == "commit"]
    assert epochs == sorted(set(range(1, 9)) - lost)
    gaps = sum(epoch - 1 not in {0, *epochs} for epoch in epochs)
    assert sum(one.kind == "lost" for one in shown) == gaps
