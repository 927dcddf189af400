"""The data directory of an embedded Postgres: made completely or not at all, and used by one server at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deuz_workers.embedded.account import ServerAccount, closed_folder
from deuz_workers.errors import ServerUnavailableError

PREDECESSOR_S = 5.0
"""How long a server that still uses the folder may take to go. After a kill of its owner it is being stopped already."""
POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Postmaster:
    """What `postmaster.pid` says. Source: Postgres, `src/include/utils/pidfile.h`."""

    pid: int
    socket_folder: str
    is_ready: bool


@dataclass(frozen=True, slots=True)
class DataFolder:
    """A folder for one Postgres cluster, owned by `account` (`None`: the current user)."""

    path: Path
    account: ServerAccount | None

    @property
    def major(self) -> int | None:
        """Major version of the Postgres that made it; `None` while it is missing or empty."""
        try:
            return int((self.path / "PG_VERSION").read_text())
        except FileNotFoundError:
            return None

    def check(self) -> None:
        """Raises ServerUnavailableError: out of reach of the server's account, somebody else's, or not Postgres' at all."""
        if closed := closed_folder(self.path, self.account):
            raise ServerUnavailableError(
                f"the data directory {self.path} lies in {closed}, which the account that runs the server cannot enter; "
                f"choose another one, for instance /var/lib/deuz/{self.path.name}, or run as another user than root"
            )
        if not self.path.exists():
            return
        if self.major is None and any(self.path.iterdir()):
            raise ServerUnavailableError(f"{self.path} has content and is not a Postgres data directory; give another one")
        owner = self.path.stat().st_uid
        if self.major is not None and owner != (self.account.uid if self.account else os.geteuid()):
            raise ServerUnavailableError(
                f"the data directory {self.path} belongs to the user with id {owner}; run as that user or give another one"
            )

    @contextmanager
    def locked(self) -> Generator[None]:
        """No other process of ours prepares this folder meanwhile. Raises ServerUnavailableError when one does."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = self.path.with_name(f".{self.path.name}.lock")
        with lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ServerUnavailableError(
                    f"another process prepares the data directory {self.path} at this moment; wait for it or give another one"
                ) from None
            yield

    @contextmanager
    def made_new(self) -> Generator[Path]:
        """An empty folder that takes the place of this one at the end; after an error, or a kill, nothing was made."""
        unfinished = self.path.with_name(f"{self.path.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        if self.account:
            os.chown(unfinished, self.account.uid, self.account.gid)
        try:
            yield unfinished
            unfinished.rename(self.path)  # also onto an empty folder
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def postmaster(self) -> Postmaster | None:
        """The server that has noted itself here; `None` when there is none, or it is still writing the note."""
        try:
            lines = (self.path / "postmaster.pid").read_text().splitlines()
            return Postmaster(int(lines[0]), lines[4] if len(lines) > 4 else "", len(lines) > 7 and lines[7].strip() == "ready")
        except (FileNotFoundError, ValueError, IndexError):
            return None

    def clear_stale_pid_file(self) -> None:
        """No note of a dead server is left. Raises ServerUnavailableError when a living one uses the folder.

        Postgres clears most of these itself, but takes any living process of that id for a server: after a crash of a
        container the same small numbers are used again, and the database would never start.
        """
        deadline = time.monotonic() + PREDECESSOR_S
        while (postmaster := self.postmaster()) is not None:
            if not _is_postgres(postmaster.pid):
                (self.path / "postmaster.pid").unlink(missing_ok=True)
            elif time.monotonic() > deadline:
                raise ServerUnavailableError(
                    f"the data directory {self.path} is in use by the Postgres with process id {postmaster.pid}; stop it, or "
                    f"set DEUZ_DATABASE_URL=postgresql://postgres@/postgres?host={postmaster.socket_folder}"
                )
            else:
                time.sleep(POLL_S)


def _is_postgres(pid: int) -> bool:
    if sys.platform == "linux":
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
        except OSError:
            return False
    else:
        command = subprocess.run(["/bin/ps", "-o", "comm=", "-p", str(pid)], capture_output=True, check=False).stdout.strip()  # noqa: S603
    return os.path.basename(command) == b"postgres"  # noqa: PTH119 - bytes
