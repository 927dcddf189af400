"""Which files are reviewed and where the report goes; the same in every process, since all read it from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deuz_workers import ConfigurationError, ToolError

PATHS = "CODE_REVIEW_PATHS"
LIMIT = "CODE_REVIEW_LIMIT"
REPORT = "CODE_REVIEW_REPORT"
PACE_MS = "CODE_REVIEW_PACE_MS"

DEFAULT_LIMIT = 24
SKIPPED = frozenset(("__pycache__", ".venv", "venv", "node_modules", ".git", ".tox", "build", "dist"))


@dataclass(frozen=True)
class Workspace:
    """What the tools may touch: Python files below `root`, and one file to write."""

    paths: tuple[Path, ...]
    report: Path
    limit: int = DEFAULT_LIMIT
    pace_ms: int = 0
    """Every tool that measures waits so long, so that a person can follow (and kill a worker in the middle of one)."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Workspace:
        """Of this process: the paths that `CODE_REVIEW_PATHS` lists, else the sources of the installed package."""
        given = [path for path in environment.get(PATHS, "").split(os.pathsep) if path]
        return cls(
            paths=tuple(Path(path).resolve() for path in given) or (Path(__file__).resolve().parents[2],),
            report=Path(environment.get(REPORT) or "deuz-report.md").resolve(),
            limit=int(environment.get(LIMIT) or DEFAULT_LIMIT),
            pace_ms=int(environment.get(PACE_MS) or 0),
        )

    def to_environment(self) -> dict[str, str]:
        """What `from_environment` reads this from."""
        return {
            PATHS: os.pathsep.join(str(path) for path in self.paths),
            REPORT: str(self.report),
            LIMIT: str(self.limit),
            PACE_MS: str(self.pace_ms),
        }

    @property
    def root(self) -> Path:
        """Names of files are relative to it."""
        folders = [path if path.is_dir() else path.parent for path in self.paths]
        return Path(os.path.commonpath(folders))

    def files(self) -> tuple[str, ...]:
        """Names of the files to review: the largest, at most `limit`, in alphabetical order.

        Raises ConfigurationError when there are none.
        """
        found = {file for path in self.paths for file in python_files(path)}
        largest = sorted(found, key=lambda file: (-file.stat().st_size, str(file)))[: self.limit]
        if not largest:
            raise ConfigurationError(
                f"no Python files in {', '.join(str(path) for path in self.paths)}; name files or folders that hold some"
            )
        return tuple(sorted(str(file.relative_to(self.root)) for file in largest))

    def read(self, name: str) -> str:
        """Text of a file that is to be reviewed. Raises ToolError, which the model reads, for any other."""
        if name not in self.files():
            raise ToolError(f"{name!r} is not among the files of this review; list_files names them")
        try:
            return (self.root / name).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise ToolError(f"{name!r} cannot be read: {error.strerror}") from None


def python_files(path: Path) -> Sequence[Path]:
    """The file itself, or all Python files in the folder that are not empty and not somebody else's."""
    if path.is_file():
        return [path] if path.suffix == ".py" else []
    return [
        file
        for file in path.rglob("*.py")
        if not SKIPPED.intersection(file.relative_to(path).parts) and file.is_file() and file.stat().st_size
    ]
