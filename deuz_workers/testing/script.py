"""What scripted models answer, for scripts of one's own: `MockModel.function` and the model server take these."""

from __future__ import annotations

from deuz_workers.ports.model import ModelRequest
from deuz_workers.providers.script import Entry, ScriptedCall, ScriptedReply, attempts, call, calls, fails, hangs, reply

__all__ = ["Entry", "ModelRequest", "ScriptedCall", "ScriptedReply", "attempts", "call", "calls", "fails", "hangs", "reply"]
