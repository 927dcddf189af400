"""Bytes of images and files inside a request."""

from __future__ import annotations

import base64

from deuz_workers.core.messages import FilePart


def data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"


def file_name(part: FilePart) -> str:
    """Beside the bytes a name is wanted, and its ending tells the server what the file is."""
    return part.name or f"file.{part.media_type.rpartition('/')[2]}"
