"""What an error says, for whatever error: those of user code may have no text, a broken one, or one of fifty megabytes."""

from __future__ import annotations

from deuz_workers.errors import DeuzError

MOST_CHARACTERS = 20_000
"""Of an error text that is stored: a model reads it, and it is read again with every later turn."""


def describe(error: BaseException) -> str:
    """Class and text. Never raises."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def text_of(error: BaseException) -> str:
    """The text alone: the message of an error of ours. Never raises, and returns a plain string."""
    try:
        said: object = getattr(error, "message", error) if isinstance(error, DeuzError) else error
        text = str.__str__(said if isinstance(said, str) else str(said))
    except BaseException as another:  # noqa: BLE001 - also the user's code
        return f"(its text cannot be had: {type(another).__name__})"
    return bounded(text)


def bounded(text: str) -> str:
    """The text, or its beginning and how much was cut."""
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]} [{len(text) - MOST_CHARACTERS} more characters were cut]"


def place_of(error: BaseException) -> str:
    """File and line where the error was raised: no message and no values, which may hold prompts."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return "unknown" if at is None else f"{at.tb_frame.f_code.co_filename.rpartition('/')[2]}:{at.tb_lineno}"
