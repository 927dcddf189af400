"""Answers in JSON, whatever texts are in them."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse


class JsonResponse(JSONResponse):
    """Models write halves of surrogate pairs now and then; UTF-8 has none, so a text with one goes out escaped."""

    def render(self, content: Any) -> bytes:
        try:
            return super().render(content)
        except UnicodeEncodeError:
            return json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()
