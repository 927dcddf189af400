"""A model server on loopback that answers by a script, well or badly, on whichever wire it is asked.

::

    with ModelServer([calls(call("add", a=1, b=2)), "done"]) as server:
        model = ChatCompletionsModel("any", server.base_url)

In a process of its own, for real workers: `python -m deuz_workers.testing.model_server --port 8089 --script my.module:SCRIPT`.

A list is played by turn, as `MockModel` does; `in_order` plays one by arrival. A function gets the `ReceivedRequest`.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import json
import signal
import socket
import sys
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, cast

from deuz_workers.errors import ConfigurationError
from deuz_workers.providers.script import Attempts, Entry, ScriptedCall, ScriptedReply
from deuz_workers.testing.anthropic_answers import AnthropicAnswers
from deuz_workers.testing.chat_answers import ChatAnswers
from deuz_workers.testing.gemini_answers import GeminiAnswers
from deuz_workers.testing.model_exchange import respond
from deuz_workers.testing.model_faults import Served, refuse, served_error
from deuz_workers.testing.model_wire import Answers, Asked
from deuz_workers.testing.responses_answers import ResponsesAnswers

WIRES: tuple[Answers, ...] = (ChatAnswers(), ResponsesAnswers(), AnthropicAnswers(), GeminiAnswers())
"""Told apart by the path of the request."""
KEPT_REQUESTS = 10_000
WAIT_S = 10.0
"""Longest wait of a test for something that the server has to see."""


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """One request as it came. `headers` have lower-case names."""

    number: int
    """In order of arrival, from 1."""
    attempt: int
    """How often this conversation arrived, this time included."""
    path: str
    answers: Answers
    """Of the wire that it came on."""
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.raw)

    @property
    def turn(self) -> int:
        """Turns of the model that the request carries, plus 1."""
        return self.asked.turn

    @property
    def asked(self) -> Asked:
        return self.answers.asked(self.path, self.body)


ServerEntry = Entry | Served
ServerAnswer = Callable[[ReceivedRequest], ServerEntry | Awaitable[ServerEntry]]
Script = Sequence[ServerEntry] | ServerAnswer


def in_order(entries: Sequence[ServerEntry]) -> ServerAnswer:
    """A script whose entries are played in order of arrival; the last one repeats."""
    return lambda request: entries[min(request.number, len(entries)) - 1]


class ModelServer:
    """Serves from a thread of its own while the `with` block lasts."""

    def __init__(self, script: Script, *, port: int = 0) -> None:
        """`port` 0: a free one."""
        self._script = script
        self._port = port
        self._changed = threading.Condition()
        self._seen: Counter[str] = Counter()
        self.requests: deque[ReceivedRequest] = deque(maxlen=KEPT_REQUESTS)
        self.accepted = 0
        """Connections since the start."""
        self.received = 0
        """Requests since the start; `requests` keeps the newest of them."""
        self.open_connections = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="model-server", daemon=True)
        self._handlers: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def root(self) -> str:
        """Without a path; each wire has one of its own."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def base_url(self) -> str:
        """Of OpenAI's wires."""
        return f"{self.root}/v1"

    def __enter__(self) -> ModelServer:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait_until(self, is_true: Callable[[ModelServer], bool]) -> None:
        """Block until the server's state has it so. Raises: `AssertionError` after `WAIT_S` seconds."""
        with self._changed:
            assert self._changed.wait_for(lambda: is_true(self), WAIT_S), (
                f"not seen within {WAIT_S} s: {len(self.requests)} requests, {self.open_connections} open connections"
            )

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    def _note(self, *, accepted: int = 0, opened: int = 0, request: ReceivedRequest | None = None) -> None:
        with self._changed:
            self.accepted += accepted
            self.open_connections += opened
            if request is not None:
                self.requests.append(request)
                self.received += 1
            self._changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        self._note(accepted=1, opened=1)
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while (request := await self._receive(reader, writer)) is not None:
                self._note(request=request)
                if not await self._answer_to(request, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._handlers.discard(task)
            self._note(opened=-1)

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ReceivedRequest | None:
        """None: the client has left, or asked for a path that nothing is served under, which ends the connection."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        path = first.split(" ")[1]
        answers = next((answers for answers in WIRES if answers.serves(path)), None)
        if answers is None:
            nothing = Asked("", 1, stream=False)
            await respond(refuse(404, code="not_found"), WIRES[0], nothing, reader, writer)
            return None
        asked = json.dumps([path, answers.conversation(json.loads(raw))])
        self._seen[asked] += 1
        return ReceivedRequest(self.received + 1, self._seen[asked], path, answers, headers, raw)

    async def _answer_to(self, request: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        return await respond(await self._served(request), request.answers, request.asked, reader, writer)

    async def _served(self, request: ReceivedRequest) -> Served:
        entry: Any = self._script
        if not callable(entry):
            if request.turn > len(entry):
                return refuse(400, code="script_exhausted")
            entry = entry[request.turn - 1]
        while True:
            match entry:
                case Served():
                    return entry
                case str():
                    return Served(ScriptedReply(text=entry))
                case ScriptedCall():
                    return Served(ScriptedReply(calls=(entry,)))
                case ScriptedReply(error=None):
                    return Served(entry)
                case ScriptedReply(error=error, fragments=()):
                    entry = error
                case ScriptedReply():
                    return _broken_off(entry, request)
                case Attempts():
                    entry = entry.entries[min(request.attempt, len(entry.entries)) - 1]
                case Exception():
                    return served_error(entry)
                case type():
                    entry = entry()
                case _ if callable(entry):
                    answered = cast(ServerAnswer, entry)(request)
                    entry = await answered if inspect.isawaitable(answered) else answered
                case _:
                    raise ConfigurationError(f"the script of the model server has an entry of type {type(entry).__name__}")


def _broken_off(scripted: ScriptedReply, request: ReceivedRequest) -> Served:
    """A stream that is cut after the fragments of the reply."""
    whole = replace(scripted, error=None, text="".join(scripted.fragments or ()))
    sent = list(request.answers.pieces(whole, request.asked))
    last = max(place for place, piece in enumerate(sent) if piece.is_text)
    return Served(whole, cut_at=sum(len(piece.data) for piece in sent[: last + 1]))


def echo(request: ReceivedRequest) -> str:
    """The default script of the command: repeats the newest message."""
    body = request.body
    newest = next(body[name] for name in ("messages", "input", "contents") if name in body)[-1]
    content = newest.get("content", newest.get("parts"))
    return f"You said: {content if isinstance(content, str) else json.dumps(content)}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; the first line on stdout is the base URL."""
    parser = argparse.ArgumentParser(prog="python -m deuz_workers.testing.model_server", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument(
        "--script", default="deuz_workers.testing.model_server:echo", help="module:attribute, a list or a function"
    )
    given = parser.parse_args(arguments)
    module, _, attribute = str(given.script).partition(":")
    stopped = threading.Event()

    def stop(*_: object) -> None:
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    script = getattr(importlib.import_module(module), attribute)
    with ModelServer(script, port=given.port) as server:
        sys.stdout.write(f"{server.base_url}\n")
        sys.stdout.flush()
        stopped.wait()


if __name__ == "__main__":
    main()
