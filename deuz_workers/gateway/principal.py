"""Who asks, and what they may touch."""

from __future__ import annotations

from dataclasses import dataclass

from deuz_workers.errors import ConfigurationError, DeuzError

ALL = "*"
"""In place of the names of scopes: all of them."""
OPERATOR = "@operator"
"""Among the names of scopes: no tenant, but what holds for all of them, budgets and brakes. `*` does not include it."""


class ForbiddenError(DeuzError):
    """Whoever asks may not touch that scope."""

    code = "scope_forbidden"


@dataclass(frozen=True, slots=True)
class Principal:
    """`name` is who answers, in what is recorded of an approval. `scopes`: what they may touch."""

    name: str
    scopes: tuple[str, ...]

    @property
    def tenants(self) -> tuple[str, ...]:
        """Their scopes that hold runs."""
        return tuple(scope for scope in self.scopes if scope != OPERATOR)

    def check_operator(self) -> None:
        """Raises `ForbiddenError` unless they may say what holds for every tenant."""
        if OPERATOR not in self.scopes:
            raise ForbiddenError(f"{self.name!r} is no operator; it takes a token with scope {OPERATOR!r}", scope=OPERATOR)

    def scope(self, asked: str | None) -> str:
        """The scope that a request is about. `asked` None: the only one that they have.

        Raises `ForbiddenError`, for scopes that exist and for others alike; `ConfigurationError` where it has to be named.
        """
        if asked == ALL:
            raise ConfigurationError("'*' stands for all scopes, and a request is about one; name it", code="scope_needed")
        tenants = self.tenants
        if asked is not None:
            if asked == OPERATOR or (ALL not in tenants and asked not in tenants):
                raise ForbiddenError(f"{self.name!r} may not touch scope {asked!r}; ask whoever gives out tokens", scope=asked)
            return asked
        if not tenants and self.scopes:
            raise ForbiddenError(f"{self.name!r} may touch runs of no scope; ask whoever gives out tokens", scope=None)
        if len(tenants) == 1 and tenants[0] != ALL:
            return tenants[0]
        if ALL in tenants or "default" in tenants:
            return "default"
        raise ConfigurationError(f"name a scope: ?scope=, one of {', '.join(sorted(tenants))}", code="scope_needed")
