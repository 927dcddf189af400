"""What every model that is reached over HTTP can be told about reaching it, whatever its wire is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypedDict

from deuz_workers.ports.output import OutputMode
from deuz_workers.ports.runtime import Clock
from deuz_workers.providers.http import Timeouts
from deuz_workers.providers.retry import RetryPolicy
from deuz_workers.providers.transport import Transport


class Connection(TypedDict, total=False):
    """Keyword arguments that all model classes of this package take; each may be left out."""

    api_key: str | None
    """None or left out: from the environment where the URL is the vendor's own, read at the first call; no key for any other
    server, so that the vendor's never reaches one by accident."""
    headers: Mapping[str, str] | None
    """Sent with every request, over what the wire itself sends."""
    output_mode: OutputMode
    """How typed answers are asked for: `json`, in the request, or `tool`, by one forced tool, for servers without the first.
    Left out: `json`."""
    context_window_tokens: int | None
    """How long a request may be, for agents that compact their history; None or left out: the agent has to say."""
    rejects: Collection[str]
    """Which of `temperature` and `max_output_tokens` the model does not take; they are not sent to it."""
    timeouts: Timeouts
    transport: Transport
    """Answers in place of the network, for tests and examples without one."""
    max_retries: int
    """Repetitions inside one call, after its first try; 0 for none. Goes before the one in `retry`. Left out: 2."""
    retry: RetryPolicy
    clock: Clock | None
    """For the waits between retries; None or left out: the machine's."""
    chance: Callable[[], float]
    """Random numbers from 0 to 1 for the jitter of these waits."""
