"""Telling readers what goes on in a run. Whatever happens here, the run goes on as if nobody listened."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from deuz_workers.core.delegation import path_of
from deuz_workers.core.live import LivePart, forwarded, parts_of
from deuz_workers.core.parent import Parent
from deuz_workers.core.run import Run
from deuz_workers.engine.log_place import note_place
from deuz_workers.ports.asides import Aside
from deuz_workers.ports.live import LiveSink

log = logging.getLogger(__name__)


def tell_commit(sink: LiveSink, run: Run, revision: int) -> None:
    """Readers are told what the commit of everything unsaved in `run` says, now that it is applied as `revision`."""
    note_place(run)
    scope, run_id, parent = run.envelope.scope, run.envelope.run_id, run.envelope.parent
    try:
        if sink.wants(scope, run_id):
            sink.put(scope, run_id, *parts_of(run, revision))
        if parent is not None and not parent.is_quiet and sink.wants(scope, parent.root):
            told = (part for part in parts_of(run, revision) if part.kind != "commit")
            sink.put(scope, parent.root, *(forwarded(part, path_of(run.envelope), run_id) for part in told))
    except Exception as error:  # noqa: BLE001 - a defect here must not end a step whose commit is applied
        log.error("live_failed run=%s error=%s", run_id, type(error).__name__)


@dataclass(slots=True)
class Telling:
    """The answer that a model is writing in one call, told as it comes. Called from whatever thread the model uses."""

    sink: LiveSink
    scope: str
    run_id: str
    step: int
    epoch: int
    """Revision of the commit that allowed the call."""
    on_first: Callable[[], None]
    """Called when the first fragment arrives."""
    below: Parent | None = None
    """Whose readers are told too, of a run that was delegated."""
    path: tuple[str, ...] = ()
    has_told: bool = False
    """Something of the text."""
    _has_heard: bool = False

    def __call__(self, text: object) -> None:
        """A fragment. Never raises, since whatever it raised would be taken for the model's failure."""
        if not isinstance(text, str) or not text:
            return
        self.has_told = True
        self._tell(LivePart("text", self.step, self.epoch, {"text": str.__str__(text)}))

    def aside(self, aside: Aside) -> None:
        """A fragment of a thought or of arguments. Never raises either."""
        about: dict[str, object] = {"text": aside.text}
        if aside.kind == "arguments":
            about |= {"place": aside.place, "tool": aside.tool}
        self._tell(LivePart(aside.kind, self.step, self.epoch, about))

    def _tell(self, part: LivePart) -> None:
        is_first, self._has_heard = not self._has_heard, True
        try:
            if is_first:
                self.on_first()
            if self.sink.wants(self.scope, self.run_id):
                self.sink.put(self.scope, self.run_id, part)
            above = self.below
            if above is not None and not above.is_quiet and self.sink.wants(self.scope, above.root):
                self.sink.put(self.scope, above.root, forwarded(part, self.path, self.run_id))
        except Exception as error:  # noqa: BLE001 - see above
            log.error("live_failed run=%s error=%s", self.run_id, type(error).__name__)
