"""What a store does about a refused reservation before it is reported: open, slice, fold once more."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from uuid import UUID

from deuz_workers.core.change import Reserve
from deuz_workers.core.shared_budget import SharedBudget
from deuz_workers.store.dialect import Row

Fetch = Callable[[str, Mapping[str, object]], Awaitable[Sequence[Row]]]

MOST_GROWTHS = 3
"""Of one reservation: others may take what was granted for it."""
_SLICE = re.compile(r"#\d+$")
NO_SLICES: Mapping[str, int] = {}


def whole_key(key: str) -> str:
    """Of the scope that a slice belongs to; any other key is its own."""
    return _SLICE.sub("", key)


def reserve_parameters(reserve: Reserve | None, rid: UUID, slices: Mapping[str, int] = NO_SLICES) -> dict[str, object]:
    """Parallel lists, one entry per scope; every key once. `slices`: how many rows stand for a key, as far as that is known.

    A run asks one slice of a scope all its life. One that holds the scope to limits of its own asks the scope itself, where
    what was granted to slices counts as used.
    """
    if reserve is None:
        keys, known = [], dict[str, SharedBudget]()
    else:
        keys, known = list(dict.fromkeys(reserve.scopes)), {shared.key: shared for shared in reserve.shared}
    terms = [known.get(key) for key in keys]
    windows = [None if term is None else term.window for term in terms]
    warnings = [None if term is None else term.warn_at_percent for term in terms]
    return {
        "request_id": None if reserve is None else reserve.request_id,
        "reserve_scope": [
            f"{key}#{rid.int % slices[key]}" if slices.get(key) and not (term and term.limit.is_limited) else key
            for key, term in zip(keys, terms, strict=True)
        ],
        "reserve_tokens": 0 if reserve is None else reserve.tokens,
        "reserve_micros": None if reserve is None else reserve.cost_micros,
        "reserve_limit_tokens": [None if term is None else term.limit.tokens for term in terms],
        "reserve_limit_micros": [None if term is None else term.limit.usd_micros for term in terms],
        "reserve_window_ms": [None if window is None else window.ms for window in windows],
        "reserve_buckets": [None if window is None else window.buckets for window in windows],
        "reserve_any_window": [term is None or term.as_stored or term.inherited for term in terms],
        "reserve_named": [term is not None for term in terms],
        "reserve_warn": warnings,
        "reserve_warn_else": None if reserve is None else reserve.warn_percent,
        "reserve_uncounted": reserve is not None and reserve.uncounted,
        "reserve_model": "" if reserve is None else reserve.model,
        "reserve_remember": False,
    }


class Admission:
    """Of one commit. `params` are its parameters, which are changed for the next try."""

    def __init__(
        self, fetch: Fetch, reserve: Reserve, rid: UUID, params: MutableMapping[str, object], slices: MutableMapping[str, int]
    ) -> None:
        """`slices`: what the process knows of sliced scopes; learned here."""
        self._fetch = fetch
        self._reserve = reserve
        self._rid = rid
        self._params = params
        self._slices = slices
        self._growths = 0
        self._opened: set[str] = set()

    async def may_try_again(self, refusal: Row) -> bool:
        """The commit is worth another try; False: report this refusal."""
        key, reason = str(refusal["refused_scope"]), str(refusal["refused_reason"])
        if reason == "unopened" and key not in self._opened:
            self._opened.add(key)
            await self._open(key)
            return True
        if reason == "sliced":
            await self._learn(key)
            return True
        if reason in ("window_mismatch", "request_mismatch"):
            return False
        if whole_key(key) != key and self._growths < MOST_GROWTHS:
            self._growths += 1
            if await self._grow(key):
                return True
        if not self._params["reserve_remember"]:
            # What was settled while the statement waited is seen by the next one, whose word counts.
            self._params["reserve_remember"] = True
            return True
        return False

    async def _open(self, key: str) -> None:
        if whole_key(key) != key:  # the scope is no longer sliced as this process knew it
            self._slices.pop(whole_key(key), None)
            self._params.update(reserve_parameters(self._reserve, self._rid, self._slices))
            return
        window = next(shared.window for shared in self._reserve.shared if shared.key == key)
        opened = {"key": key, "window_ms": None if window is None else window.ms}
        await self._fetch("open_scope", {**opened, "buckets": None if window is None else window.buckets})

    async def _learn(self, key: str) -> None:
        rows = await self._fetch("slices_of", {"key": key})
        self._slices[key] = int(rows[0]["slices"]) if rows else 0
        self._params.update(reserve_parameters(self._reserve, self._rid, self._slices))

    async def _grow(self, key: str) -> bool:
        """A slice is granted more, if need be of what the others do not use."""
        asked = {"key": key, "tokens": self._reserve.tokens, "micros": self._reserve.cost_micros or 0}
        if await self._fetch("grow_slice", asked):
            return True
        await self._fetch("reclaim_slices", {"key": whole_key(key)})
        return bool(await self._fetch("grow_slice", asked))
