"""Runs a claim in a forked child, as a prefork worker would."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable


def holds_in_child(claim: Callable[[], bool]) -> bool:
    """What `claim` returned in a child forked from here; False if it raised, which is printed."""
    with warnings.catch_warnings():
        # from 3.12 on a fork beside threads warns; what survives it is just what is tested
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if claim() else 1
        except BaseException:  # noqa: BLE001 - the child ends here, whatever it was
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
