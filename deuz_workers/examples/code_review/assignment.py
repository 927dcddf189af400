"""What is reviewed, where the report goes and who thinks: the same in every process, from its environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deuz_workers import ConfigurationError

FILES, OUT, MODEL, BASE_URL, PACE = "REVIEW_FILES", "REVIEW_OUT", "REVIEW_MODEL", "REVIEW_BASE_URL", "REVIEW_PACE_MS"
API_KEY = "REVIEW_API_KEY"
"""For a server that is not OpenAI's; OpenAI's own key stays in `OPENAI_API_KEY`. Never on a command line."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """`model` None: the scripted one. `pace_ms`: how long each scripted answer and each look at a file takes at least."""

    files: tuple[Path, ...] = ()
    out: Path = Path("deuz-report.md")
    model: str | None = None
    base_url: str | None = None
    pace_ms: int = 0

    @classmethod
    def from_environment(cls) -> Assignment:
        """As `environment` wrote it; an empty one in a process that was told nothing."""
        given = os.environ
        return cls(
            tuple(map(Path, json.loads(given.get(FILES, "[]")))),
            Path(given.get(OUT, "deuz-report.md")),
            given.get(MODEL) or None,
            given.get(BASE_URL) or None,
            int(given.get(PACE, "0")),
        )

    def environment(self) -> Mapping[str, str]:
        """Variables for the processes that are to work on this."""
        return {
            FILES: json.dumps(list(map(str, self.files))),
            OUT: str(self.out),
            MODEL: self.model or "",
            BASE_URL: self.base_url or "",
            PACE: str(self.pace_ms),
        }

    def file(self, path: str) -> Path:
        """The file of that name. Raises ConfigurationError for one that is not up for review, whoever asks."""
        found = next((file for file in self.files if str(file) == path), None)
        if found is None:
            raise ConfigurationError(f"{path!r} is not one of the {len(self.files)} files under review; see list_files")
        return found
