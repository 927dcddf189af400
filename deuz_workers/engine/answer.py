"""Does an answer have the output type of the run? User code says so, after the answer is saved."""

from __future__ import annotations

from dataclasses import dataclass

from deuz_workers.core.events import Finished, OutputRejected
from deuz_workers.core.failure import describe, text_of
from deuz_workers.engine.hooks import Hooks
from deuz_workers.engine.user_code import Broken, LimitPassed, stored_form
from deuz_workers.errors import CodecError, OutputError, as_record
from deuz_workers.ports.output import MAX_OUTPUT_BYTES, OutputType


@dataclass(frozen=True, slots=True)
class Accepted:
    """An answer of the right form."""

    value: object
    """As the validator returned it."""
    stored: object
    """As it is stored; a later change of `value` is not seen here."""


async def judge(output: OutputType, text: str, hooks: Hooks) -> Finished | OutputRejected:
    """The end of the run with its output as it is stored, or why the answer is asked for again."""
    read = await read_answer(output, text, hooks)
    return Finished("completed", output=read.stored, has_output=True) if isinstance(read, Accepted) else read


async def read_answer(output: OutputType, text: str, hooks: Hooks) -> Accepted | Finished | OutputRejected:
    """The output that the text stands for, or why the answer is asked for again.

    A validator whose result cannot be stored ends the run as `failed`: no other answer would mend that.
    """
    try:
        value = await hooks.ask(output.name, output.accept, text)
        return Accepted(value, await stored_form(value, MAX_OUTPUT_BYTES))
    except LimitPassed:
        return OutputRejected(f"checking it took longer than {hooks.limit_ms} ms.")
    except CodecError as error:
        return Finished("failed", error=as_record(OutputError(f"the output cannot be stored: {error.message}")))
    except Broken as broken:
        return OutputRejected(text_of(broken.error) if isinstance(broken.error, OutputError) else describe(broken.error))
