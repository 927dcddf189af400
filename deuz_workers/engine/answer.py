"""Does an answer have the output type of the run? User code says so, after the answer is saved."""

from __future__ import annotations

from deuz_workers.core.events import Finished, OutputRejected
from deuz_workers.core.failure import describe, text_of
from deuz_workers.engine.hooks import Hooks
from deuz_workers.engine.user_code import Broken, LimitPassed, stored_form
from deuz_workers.errors import CodecError, OutputError, as_record
from deuz_workers.ports.output import MAX_OUTPUT_BYTES, OutputType


async def judge(output: OutputType, text: str, hooks: Hooks) -> Finished | OutputRejected:
    """The end of the run with its output as it is stored, or why the answer is asked for again.

    A validator whose result cannot be stored ends the run as `failed`: no other answer would mend that.
    """
    try:
        value = await hooks.ask(output.name, output.accept, text)
        return Finished("completed", output=await stored_form(value, MAX_OUTPUT_BYTES), has_output=True)
    except LimitPassed:
        return OutputRejected(f"checking it took longer than {hooks.limit_ms} ms.")
    except CodecError as error:
        return Finished("failed", error=as_record(OutputError(f"the output cannot be stored: {error.message}")))
    except Broken as broken:
        return OutputRejected(text_of(broken.error) if isinstance(broken.error, OutputError) else describe(broken.error))
