"""What readers were shown, and tokens of the gateway: `FrameStore` and `AccessTokenStore`.

For stores that have these methods; they are no part of `RunStore`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Protocol
from uuid import uuid4

from deuz_workers.ports.access_tokens import AccessTokenStore
from deuz_workers.ports.frames import FrameStore
from deuz_workers.ports.store import RunStore
from deuz_workers.testing.store_conformance_bench import ODD_TEXT, Bench

ODD = json.dumps(ODD_TEXT)
"""As frames are: ASCII, whatever they say."""


class GatewayStore(RunStore, FrameStore, AccessTokenStore, Protocol):
    """All that a gateway stores."""


class GatewayConformance:
    """Needs a fixture named `store`, a `GatewayStore`."""

    async def test_frames_are_read_back_in_order_from_any_place(self, store: GatewayStore) -> None:
        """Dense numbers from 1, whatever text; other streams and scopes are others."""
        scope = f"scope-{uuid4()}"
        assert await store.append_frames(scope, "s", 0, ["a", ODD])
        assert await store.append_frames(scope, "s", 2, ["c"])
        assert [row.seq for row in await store.read_frames(scope, "s", 0, 10)] == [1, 2, 3]
        assert [row.body for row in await store.read_frames(scope, "s", 1, 1)] == [ODD]
        last = await store.last_frame(scope, "s")
        assert last is not None
        assert (last.seq, last.body) == (3, "c")
        assert await store.read_frames(scope, "t", 0, 10) == ()
        assert await store.last_frame(f"{scope}x", "s") is None
        await store.delete_frames(scope, "s")
        assert await store.last_frame(scope, "s") is None

    async def test_frames_go_behind_the_newest_or_not_at_all(self, store: GatewayStore) -> None:
        """A number that is taken and one that leaves a gap write nothing, not even the part that would fit."""
        scope = f"scope-{uuid4()}"
        assert await store.append_frames(scope, "s", 0, ["a"])
        for after in (0, 2, 5):
            assert not await store.append_frames(scope, "s", after, ["x", "y", "z"])
        assert [row.body for row in await store.read_frames(scope, "s", 0, 10)] == ["a"]

    async def test_of_many_writers_of_one_number_one_wins_whole(self, store: GatewayStore) -> None:
        """Round after round, with batches of different lengths."""
        scope, newest = f"scope-{uuid4()}", 0
        for _ in range(5):
            batches = [[f"{writer}.{place}" for place in range(1 + writer % 3)] for writer in range(8)]
            won = await asyncio.gather(*(store.append_frames(scope, "s", newest, batch) for batch in batches))
            assert sum(won) == 1
            batch = batches[won.index(True)]
            assert [row.body for row in await store.read_frames(scope, "s", newest, 10)] == batch
            newest += len(batch)

    async def test_frames_of_a_pruned_run_are_gone(self, store: GatewayStore) -> None:
        """Those under its internal key and under its id; another stream of the scope stays."""
        bench = Bench(store)
        head = await bench.start()
        for stream_id in (str(head.rid), head.run_id, "mine"):
            assert await store.append_frames(bench.scope, stream_id, 0, ["a"])
        await bench.applied(head, status="completed", due_in_ms=None)
        assert await store.prune(older_ms=-1, status=("completed",), scope=bench.scope, limit=10) == 1
        assert await store.last_frame(bench.scope, str(head.rid)) is None
        assert await store.last_frame(bench.scope, head.run_id) is None
        assert await store.last_frame(bench.scope, "mine") is not None

    async def test_a_token_is_found_by_its_digest_until_it_is_revoked(self, store: GatewayStore) -> None:
        """With whose it is and what they may touch; made twice it is one."""
        token_id, digest = uuid4().hex, uuid4().hex
        for _ in range(2):
            await store.add_access_token(token_id, "ann", ["a", "b, c"], digest, None)
        found = await store.find_access_token(digest)
        assert found is not None
        assert (found.token_id, found.principal, found.scopes, found.expires_at_ms) == (token_id, "ann", ("a", "b, c"), None)
        assert [token for token in await store.access_tokens() if token.token_id == token_id] == [found]
        assert await store.revoke_access_token(token_id)
        assert await store.find_access_token(digest) is None
        [revoked] = [token for token in await store.access_tokens() if token.token_id == token_id]
        assert revoked.revoked_at_ms is not None
        assert await store.revoke_access_token(token_id)
        assert not await store.revoke_access_token(uuid4().hex)

    async def test_a_token_expires_by_the_clock_of_the_store(self, store: GatewayStore) -> None:
        """One that was good for a moment is good no more; one with an hour left is."""
        short, long = uuid4().hex, uuid4().hex
        await store.add_access_token(uuid4().hex, "ann", ["a"], short, 0)
        await store.add_access_token(uuid4().hex, "ann", ["a"], long, 3_600_000)
        assert await store.find_access_token(short) is None
        found = await store.find_access_token(long)
        assert found is not None
        assert found.expires_at_ms is not None
        assert found.expires_at_ms - found.created_at_ms == 3_600_000
