"""`--app module:attr` to the application object, as Celery and uvicorn spell it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from deuz_workers.app.deuz import Deuz
from deuz_workers.errors import ConfigurationError


def load_app(place: str) -> Deuz:
    """The `Deuz` that `place` names: `package.module:attribute`, the attribute `app` if none is given.

    The working directory is importable afterwards. Raises `ConfigurationError` that says which part is wrong and what is there
    instead; errors of the module itself come out as they are, since they are the author's.
    """
    module_name, _, path = place.partition(":")
    path = path or "app"
    if not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        raise ConfigurationError(f"{place!r} names no application; write package.module:attribute, such as my_agents:app")
    found: object = import_from_here(module_name, place)
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            raise ConfigurationError(f"{place!r}: {_known(found, module_name)}")
        found = getattr(found, attribute)
    if not isinstance(found, Deuz):
        raise ConfigurationError(
            f"{place!r} is {with_article(type(found).__name__)}, not a Deuz; {_known(sys.modules[module_name], module_name)}"
        )
    return found


def import_from_here(name: str, place: str) -> object:
    """The module `name`; the working directory is importable afterwards.

    Raises `ConfigurationError` that quotes `place` if there is none; what the module itself raises comes out as it is.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # One that the module itself imports is its author's mistake, not one in `place`.
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        raise ConfigurationError(
            f"{place!r}: there is no module {error.name!r} in {Path.cwd()} or among the installed packages; "
            "start from the folder that holds it, or correct the name"
        ) from None


def place_of(app: Deuz) -> str | None:
    """Where another process finds `app`, as `load_app` takes it; None where no imported module holds it by a name of its own.

    A script that was started as a file has no name that can be imported.
    """
    for name, module in sorted(sys.modules.items()):
        if name == "__main__":
            spec = getattr(module, "__spec__", None)
            if spec is None:
                continue
            name = spec.name
        if not all(part.isidentifier() for part in name.split(".")):
            continue
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is app and attribute.isidentifier():
                return f"{name}:{attribute}"
    return None


def with_article(name: str) -> str:
    """`a Swarm`, `an Agent`."""
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _known(module: object, name: str) -> str:
    apps = sorted(key for key, value in vars(module).items() if isinstance(value, Deuz)) if hasattr(module, "__dict__") else []
    if apps:
        return f"the applications in {name!r} are {', '.join(f'{name}:{app}' for app in apps)}"
    return f"{name!r} holds no application of that name; write `app = Deuz([...])` in it"
