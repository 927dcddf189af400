"""Exit codes of `deuz`, and which error ends in which."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from deuz_workers.core.change import RunStatus
from deuz_workers.errors import (
    AnswerRefusedError,
    ConfigurationError,
    DeuzError,
    LeaseStoreUnavailableError,
    MigrationMissingError,
    ResultTimeoutError,
    RunExistsError,
    RunNotEndedError,
    RunNotFoundError,
    SchemaTooNewError,
    ScopeMismatchError,
    ServerUnavailableError,
    StoreUnavailableError,
)


class Exit(IntEnum):
    """Fixed: scripts test for these numbers."""

    OK = 0
    FAILED = 1
    USAGE = 2
    WAITING = 3
    UNREACHABLE = 4
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS: Final = {
    Exit.OK: "done; a run that was waited for is completed; a worker was told to end, and has",
    Exit.FAILED: "the run failed or was stopped, or doctor found something broken",
    Exit.USAGE: "wrong usage or configuration; nothing was written",
    Exit.WAITING: "the run waits for an answer, is parked, or goes on after --timeout",
    Exit.UNREACHABLE: "a server (database, Redis, broker) cannot be reached or started",
    Exit.INTERRUPTED: "ended by Ctrl-C, but for workers and the gateway; runs go on",
    Exit.TERMINATED: "ended by SIGTERM, but for workers and the gateway; runs go on",
}

_UNREACHABLE = (StoreUnavailableError, LeaseStoreUnavailableError, ServerUnavailableError)
_USAGE = (
    ConfigurationError,
    MigrationMissingError,
    SchemaTooNewError,
    RunNotFoundError,
    RunNotEndedError,
    RunExistsError,
    ScopeMismatchError,
    AnswerRefusedError,
)


def exit_of(error: DeuzError) -> Exit:
    """The code that a command ends with when `error` was not dealt with."""
    if isinstance(error, _UNREACHABLE):
        return Exit.UNREACHABLE
    if isinstance(error, _USAGE):
        return Exit.USAGE
    return Exit.WAITING if isinstance(error, ResultTimeoutError) else Exit.FAILED


def exit_of_status(status: RunStatus) -> Exit:
    """The code of a command that waited for a run, by what the run reports."""
    match status:
        case "completed":
            return Exit.OK
        case "failed" | "stopped":
            return Exit.FAILED
        case _:
            return Exit.WAITING
