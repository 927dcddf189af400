"""Tools that a client executes: a browser, a phone, another service. The call leaves, its result comes back as an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deuz_workers.tools.arguments import Arguments
from deuz_workers.tools.elsewhere import ElsewhereTool
from deuz_workers.tools.options import MAX_RESULT_BYTES, NeedsApproval, Options
from deuz_workers.tools.projection import Convert, Projection


def client_tool(
    name: str,
    description: str,
    parameters: Mapping[str, object],
    *,
    needs_approval: NeedsApproval = False,
    output_schema: Any | None = None,
    validate_result: Convert | None = None,
    to_model_output: Convert | None = None,
    max_result_bytes: int = MAX_RESULT_BYTES,
) -> ClientTool:
    """A tool without a function: a run that calls it is suspended until the client's result is handed in.

    `parameters`: a JSON Schema of type object. The options are those of `tool`; the result is checked and projected like one
    that was produced here. Raises `ConfigurationError` for what cannot be a tool.
    """
    return ClientTool(
        Options(name, description, None, needs_approval, None, max_result_bytes),
        Arguments.from_schema(name, parameters),
        Projection(name, output_schema, validate_result, to_model_output),
    )


class ClientTool(ElsewhereTool):
    """Implements `Tool`."""

    done_by = "executed by a client; hand its result in as an answer"

    def __repr__(self) -> str:
        return f"<client tool {self.name}>"

    @property
    def is_client(self) -> bool:
        return True
