"""Parts of messages on their way into a request, as far as the wires agree about them; pure."""

from __future__ import annotations

from collections.abc import Mapping

from deuz_workers.core.messages import ImagePart, Message, Part, TextPart, ToolUsePart
from deuz_workers.errors import ModelRequestError
from deuz_workers.providers.inline_data import data_url
from deuz_workers.providers.json_body import arguments_text


def misplaced(part: Part, role: str, request: str) -> ModelRequestError:
    """What a part that has no place in such a message is refused with. `request`: as people call it, with its article."""
    return ModelRequestError(f"a {type(part).__name__} has no place in a {role} message of {request}")


def only_text(message: Message, request: str) -> str:
    """Its text. Raises `ModelRequestError` for a part that is none."""
    for part in message.parts:
        if not isinstance(part, TextPart):
            raise misplaced(part, message.role, request)
    return message.text


def image_url(part: ImagePart) -> str:
    """Of the image, or with the image in it. Raises `ModelRequestError` for one that has neither."""
    if part.data is not None:
        return data_url(part.media_type, part.data)
    if part.url is None:
        raise ModelRequestError("an image has neither data nor url; give one of them")
    return part.url


def written_arguments(part: ToolUsePart, own: Mapping[str, object]) -> str:
    """As the model wrote them where that is known, so that its prompt cache is hit. `own`: the metadata that the model which
    reads the request left with the call."""
    written = own.get("arguments")
    if isinstance(written, str):
        return written
    return part.raw_arguments or "" if part.arguments is None else arguments_text(part.arguments)
