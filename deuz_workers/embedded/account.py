"""The account that an embedded server runs under when we are root: one that exists, never a new one."""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from deuz_workers.errors import ServerUnavailableError

CANDIDATES = ("postgres", "nobody")
"""`postgres` where a distribution brought it, else the account that owns nothing."""


@dataclass(frozen=True, slots=True)
class ServerAccount:
    """An existing system account."""

    name: str
    uid: int
    gid: int


def server_account() -> ServerAccount | None:
    """The account to run servers under; `None` means the current one, which is right unless we are root.

    Postgres refuses to run as root. Raises ServerUnavailableError when we are root and neither candidate exists.
    """
    if os.geteuid() != 0:
        return None
    for name in CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return ServerAccount(name, entry.pw_uid, entry.pw_gid)
    raise ServerUnavailableError(
        "Postgres does not run as root and there is neither an account 'postgres' nor 'nobody'; "
        "run as another user, or set DEUZ_DATABASE_URL and DEUZ_REDIS_URL to servers that run already"
    )


def closed_folder(path: Path, account: ServerAccount | None) -> Path | None:
    """The outermost parent folder of `path` that `account` cannot pass through; `None` when it reaches `path`.

    Judged by owner, group and mode. Folders that do not exist yet are taken as open.
    """
    if account is None:
        return None
    for folder in reversed(path.absolute().parents):
        try:
            entry = folder.stat()
        except FileNotFoundError:
            return None
        if entry.st_uid == account.uid:
            passes = entry.st_mode & stat.S_IXUSR
        elif entry.st_gid == account.gid:
            passes = entry.st_mode & stat.S_IXGRP
        else:
            passes = entry.st_mode & stat.S_IXOTH
        if not passes:
            return folder
    return None
