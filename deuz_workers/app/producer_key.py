"""Keys of producers that send messages with content through the broker, and what each may do."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

MIN_SECRET_CHARS = 32
"""128 bits even of hexadecimal digits."""


class ProducerKey(BaseModel):
    """`id` names the key in a signature, so that two can be valid while one replaces the other."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    id: str = Field(min_length=1, pattern=r"^[^:\s]+$")
    secret: SecretStr
    scopes: tuple[str, ...] = ("default",)
    """Where its runs are; ``*`` alone: in all."""
    agents: tuple[str, ...] = Field(min_length=1)
    """Whose runs it may start and answer; ``*`` alone: of all that are registered."""

    doors: tuple[Literal["enqueue", "answer", "reconcile"], ...] = Field(default=("enqueue",), min_length=1)
    """What its messages may do: start runs, answer what runs of those agents wait for, say what became of interrupted calls."""

    @model_validator(mode="after")
    def _is_long_enough(self) -> Self:
        if len(self.secret.get_secret_value()) < MIN_SECRET_CHARS:
            raise ValueError(f"the secret of producer key {self.id!r} needs at least {MIN_SECRET_CHARS} characters")
        return self

    def allows(self, scope: object, agent: object) -> bool:
        return _listed(scope, self.scopes) and _listed(agent, self.agents)


def _listed(name: object, names: tuple[str, ...]) -> bool:
    return names == ("*",) or name in names
