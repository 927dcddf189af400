"""Who asks, and what they may touch."""

from __future__ import annotations

from dataclasses import dataclass

from deuz_workers.errors import ConfigurationError, DeuzError

ALL = "*"
"""In place of the names of scopes: all of them."""


class ForbiddenError(DeuzError):
    """Whoever asks may not touch that scope."""

    code = "scope_forbidden"


@dataclass(frozen=True, slots=True)
class Principal:
    """`name` is who answers, in what is recorded of an approval. `scopes`: what they may touch."""

    name: str
    scopes: tuple[str, ...]

    def scope(self, asked: str | None) -> str:
        """The scope that a request is about. `asked` None: the only one that they have.

        Raises `ForbiddenError`, for scopes that exist and for others alike; `ConfigurationError` where it has to be named.
        """
        if asked == ALL:
            raise ConfigurationError("'*' stands for all scopes, and a request is about one; name it", code="scope_needed")
        if asked is not None:
            if ALL not in self.scopes and asked not in self.scopes:
                raise ForbiddenError(f"{self.name!r} may not touch scope {asked!r}; ask whoever gives out tokens", scope=asked)
            return asked
        if len(self.scopes) == 1 and self.scopes[0] != ALL:
            return self.scopes[0]
        if ALL in self.scopes or "default" in self.scopes:
            return "default"
        raise ConfigurationError(f"name a scope: ?scope=, one of {', '.join(sorted(self.scopes))}", code="scope_needed")
