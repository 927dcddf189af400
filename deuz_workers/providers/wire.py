"""A wire: how one family of servers is spoken to, as pure functions of requests, bytes and events.

A new one is a package `providers/<wire>/` of four modules and a small class:

* `request`: a `ModelRequest` as the body that the server takes;
* `reply`: a body that came whole as a `ModelReply`;
* `stream`: the events of a stream put together to the very shape of a body that came whole, so that one reading serves both;
* `errors`: what a refusal means, as one of the `ModelError` family;
* `model`: a subclass of `WireModel`, whose constructor says what is special about its servers.

Nothing here or in those four waits, keeps a clock or opens anything. `WireModel` does the talking: it sends, times, retries,
reads the stream and closes the connection, in the same way for all wires.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from deuz_workers.errors import ModelError
from deuz_workers.ports.model import ModelReply, ModelRequest
from deuz_workers.providers.beside import Beside
from deuz_workers.providers.sse import ServerEvent


class ReplyStream(Protocol):
    """One streamed reply on its way."""

    @property
    def is_done(self) -> bool:
        """The server has said its last event; what follows it is not read."""
        ...

    @property
    def has_content(self) -> bool:
        """Something of the answer has come: text, a thought, or part of a call."""
        ...

    def take(self, event: ServerEvent) -> str:
        """Fold one event in; returns the text that it adds to the answer, never half of a surrogate pair.

        The texts of one stream, joined, are the text of its reply, or its beginning: nobody hears a text that is not in it.

        Raises: `ModelResponseError`, for an event that is none; the failure that an event reports.
        """
        ...

    @property
    def beside(self) -> Beside:
        """Thoughts and arguments of calls that `take` found, for readers alone."""
        ...

    def completion(self) -> Mapping[str, Any] | None:
        """The reply as if it had come whole; None while it is not: then nothing of it counts, least of all a tool call.

        Raises: `ModelResponseError`, for a stream that ended as the protocol says and has no answer in it.
        """
        ...


class Wire(Protocol):
    @property
    def name(self) -> str:
        """For records of runs; never changes."""
        ...

    @property
    def path(self) -> str:
        """Behind the base URL, with a slash at its beginning."""
        ...

    def headers(self, key: str) -> Mapping[str, str]:
        """What servers of this family want beside the media types. `key` is empty where there is none."""
        ...

    def build(self, request: ModelRequest) -> Mapping[str, Any]:
        """The body, as plain data. Raises: `ModelRequestError`, for what this wire cannot say; nothing was sent."""
        ...

    def stream(self) -> ReplyStream:
        """For the reply to one request."""
        ...

    def parse(self, body: bytes) -> Mapping[str, Any]:
        """A body that came whole. Raises: `ModelResponseError`; the failure that a body of status 200 reports."""
        ...

    def read(self, completion: Mapping[str, Any]) -> ModelReply:
        """The reply in what `parse` or a stream's `completion` gave. Raises: `ModelResponseError`."""
        ...

    def failure(self, status: int, body: bytes, *, host: str, retry_after_ms: int | None) -> ModelError:
        """The error for a status other than 200. `retry_after_ms` is what the headers ask for; a body may say it too.

        Its text and fields repeat nothing of the body but the vendor's code: the body may quote the prompt or the key.
        """
        ...

    def plainer(self, status: int, body: bytes) -> Wire | None:
        """The wire without the field that this refusal is about, for servers that do not know it; None: it is about none.

        Such a refusal came before any work, so the request is sent again at once, and the server remembered to be of that kind.
        """
        ...
