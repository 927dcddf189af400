"""Tickets for readers that cannot send a header, as a browser's `EventSource`: good for a minute, for one run and one reader.

`t1.<payload>.<mac>`, see `core.seal`.
"""

from __future__ import annotations

from dataclasses import dataclass

from deuz_workers.core.seal import Seal

FORMAT = "t1"
PURPOSE = b"deuz stream ticket"
TTL_MS = 60_000


@dataclass(frozen=True, slots=True)
class StreamTicket:
    """What a ticket says. `expires_at_ms`: Unix time in milliseconds."""

    scope: str
    run_id: str
    principal: str
    expires_at_ms: int


class TicketSigner:
    """Makes and checks tickets."""

    def __init__(self, secret: str) -> None:
        self._seal = Seal(secret, PURPOSE, FORMAT)

    def sign(self, ticket: StreamTicket) -> str:
        return self._seal.sign([ticket.scope, ticket.run_id, ticket.principal, ticket.expires_at_ms])

    def read(self, token: object, *, now_ms: int) -> StreamTicket | None:
        """What a good ticket says, None for any other. Never raises."""
        match self._seal.read(token):
            case [str(scope), str(run_id), str(principal), int(expires_at_ms)] if now_ms < expires_at_ms:
                return StreamTicket(scope, run_id, principal, expires_at_ms)
            case _:
                return None
