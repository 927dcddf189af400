"""Errors of the user's own modules: what was raised, and the lines of theirs that led there."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from deuz_workers.errors import ConfigurationError, DeuzError

PACKAGE = Path(__file__).parent.parent
MOST_FRAMES = 10


class ModuleFailedError(ConfigurationError):
    """A module of the user's raised while it was imported, or a function of it while it was called."""

    code = "module_failed"


@contextmanager
def user_code(place: str) -> Generator[None]:
    """What the code that `place` names raises becomes a `ModuleFailedError`; our own errors come out as they are."""
    try:
        yield
    except DeuzError:
        raise
    except Exception as error:
        frames = own_frames(error)
        where = f" ({'; '.join(frames)})" if frames else ""
        raise ModuleFailedError(
            f"{place!r} cannot be loaded: {type(error).__name__}: {error}{where}",
            error=type(error).__name__,
            frames="\n".join(frames),
        ) from error


def own_frames(error: BaseException) -> list[str]:
    """Lines of code that is neither ours, nor Python's, nor an installed package's; outermost first, the last `MOST_FRAMES`."""
    foreign = {PACKAGE, *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib"))}
    found: list[str] = []
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if frame.filename.startswith("<") or any(folder in path.parents for folder in foreign):
            continue
        line = f": {frame.line}" if frame.line else ""
        found.append(f"{_shown(path)}:{frame.lineno} in {frame.name}{line}")
    if isinstance(error, SyntaxError) and error.filename:
        found.append(f"{_shown(Path(error.filename))}:{error.lineno}")
    return found[-MOST_FRAMES:]


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
