"""Vectors of texts, by the embedder of a memory: user code that may take long, raise, or return anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from deuz_workers.core.usage import Usage
from deuz_workers.engine.asking import priced
from deuz_workers.engine.leg import Leg
from deuz_workers.engine.reply_check import check_usage
from deuz_workers.engine.user_code import Broken, LimitPassed, outcome_of
from deuz_workers.errors import ModelResponseError
from deuz_workers.ports.memory import Embedder, Embedding

EMBED_LIMIT_MS = 30_000
"""Of one call of an embedder."""

Vector = tuple[float, ...]


class EmbedderFailed(Exception):
    """It raised, took too long, or did not return a vector for each text and a usage; says the kind of error alone."""


async def embed(leg: Leg, embedder: Embedder, texts: Sequence[str]) -> tuple[tuple[Vector, ...], Usage | None]:
    """One vector for each text, and what that used; None: it did not say. Raises `EmbedderFailed`."""
    leg.hold_for(EMBED_LIMIT_MS, "memory")
    try:
        given = await outcome_of(lambda: embedder.embed(texts), EMBED_LIMIT_MS)
    except Broken as broken:
        raise EmbedderFailed(type(broken.error).__name__) from None
    except LimitPassed:
        raise EmbedderFailed("TimeoutError") from None
    usage = given.usage if isinstance(given, Embedding) else None
    vectors = _vectors(given.vectors if isinstance(given, Embedding) else given)
    if vectors is None or len(vectors) != len(texts):
        raise EmbedderFailed("EmbedderError")
    try:
        if usage is not None:
            check_usage(usage)
    except ModelResponseError:
        raise EmbedderFailed("EmbedderError") from None
    return vectors, priced(leg.gear, leg.run, embedder.name, usage)


def _vectors(given: object) -> tuple[Vector, ...] | None:
    """None for what cannot be stored and compared."""
    try:
        vectors = tuple(tuple(float(number) for number in vector) for vector in cast(Any, given))
    except (TypeError, ValueError, OverflowError):
        return None
    return vectors if all(math.isfinite(number) for vector in vectors for number in vector) else None
