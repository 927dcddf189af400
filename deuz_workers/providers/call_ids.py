"""What calls and their results are called on a wire."""

from __future__ import annotations

from collections.abc import Mapping

from deuz_workers.core.messages import Message


def wire_ids(message: Message) -> Mapping[str, str]:
    """By our own id of each call of an assistant message: the provider's where that names one call of the turn, else ours.

    An id that comes again in a later turn is echoed there too: results follow their turn, so it names one call wherever it
    stands. One that a turn uses twice, or that is missing, would leave two results without a call of their own.
    """
    sent = [use.provider_call_id for use in message.tool_uses]
    own = {use.call_id for use in message.tool_uses}
    ids: dict[str, str] = {}
    for use in message.tool_uses:
        given = use.provider_call_id
        is_sole = bool(given) and sent.count(given) == 1 and (given == use.call_id or given not in own)
        ids[use.call_id] = given if given and is_sole else use.call_id
    return ids


class ConversationIds:
    """The same for wires where calls of all turns stand in one list: an id that an earlier turn has used, as some servers count
    from the start in every turn, gets a number behind it. What a call is called depends on what came before it only, so that
    the beginning of a request is the same as in the request before."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._of_turn: dict[str, str] = {}

    def next_turn(self, message: Message) -> None:
        """The calls of an assistant message, which those of the turn before give way to."""
        self._of_turn = {}
        for call_id, wanted in wire_ids(message).items():
            name, number = wanted, 2
            while name in self._used:
                name, number = f"{wanted}_{number}", number + 1
            self._used.add(name)
            self._of_turn[call_id] = name

    def __getitem__(self, call_id: str) -> str:
        return self._of_turn[call_id]
