"""One recorded shape of every event that a stream of OpenAI's Responses may have, as openai-python 3.57 documents them.

`test_openai_sdk.py` compares the list with the package's own, and each shape with its type. Events that our client reads are
played in `test_responses_stream.py`; here they belong to a response whose items are of no concern.
"""

from __future__ import annotations

from typing import Any

RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "in_progress",
    "model": "gpt",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "temperature": 1,
    "top_p": 1,
}
AT: dict[str, Any] = {"item_id": "i", "output_index": 7}
SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}
SUMMARY = {"type": "summary_text", "text": "Hm."}
SAID = {"type": "output_text", "text": "Hi.", "annotations": []}
CITED = {"type": "url_citation", "url": "https://x", "title": "x", "start_index": 0, "end_index": 1}
SHELL = {"command_index": 0, "output_index": 7}

READ: dict[str, dict[str, Any]] = {
    "response.output_text.delta": {**AT, "content_index": 0, "delta": "Hi.", "logprobs": []},
    "response.refusal.delta": {**AT, "content_index": 0, "delta": "No."},
    "response.output_item.done": {"output_index": 7, "item": SEARCH},
    "response.completed": {"response": RESPONSE | {"status": "completed"}},
    "response.incomplete": {"response": RESPONSE | {"status": "incomplete"}},
    "response.failed": {
        "response": RESPONSE | {"status": "failed", "error": {"code": "server_error", "message": "secret prompt"}}
    },
    "error": {"code": "rate_limit_exceeded", "message": "secret prompt", "param": None},
}
"""What our client does something about."""

PASSED_OVER: dict[str, dict[str, Any]] = {
    "response.created": {"response": RESPONSE},
    "response.queued": {"response": RESPONSE | {"status": "queued"}},
    "response.in_progress": {"response": RESPONSE},
    "response.output_item.added": {"output_index": 7, "item": SEARCH | {"status": "in_progress"}},
    "response.content_part.added": {**AT, "content_index": 0, "part": SAID | {"text": ""}},
    "response.content_part.done": {**AT, "content_index": 0, "part": SAID},
    "response.output_text.done": {**AT, "content_index": 0, "text": "Hi.", "logprobs": []},
    "response.output_text.annotation.added": {**AT, "content_index": 0, "annotation_index": 0, "annotation": CITED},
    "response.refusal.done": {**AT, "content_index": 0, "refusal": "No."},
    "response.function_call_arguments.delta": {**AT, "delta": '{"a":'},
    "response.function_call_arguments.done": {**AT, "name": "f", "arguments": '{"a":1}'},
    "response.reasoning_summary_part.added": {**AT, "summary_index": 0, "part": SUMMARY | {"text": ""}},
    "response.reasoning_summary_part.done": {**AT, "summary_index": 0, "part": SUMMARY},
    "response.reasoning_summary_text.delta": {**AT, "summary_index": 0, "delta": "Hm."},
    "response.reasoning_summary_text.done": {**AT, "summary_index": 0, "text": "Hm."},
    "response.reasoning_text.delta": {**AT, "content_index": 0, "delta": "Hm."},
    "response.reasoning_text.done": {**AT, "content_index": 0, "text": "Hm."},
    "response.custom_tool_call_input.delta": {**AT, "delta": "x"},
    "response.custom_tool_call_input.done": {**AT, "input": "x"},
    "response.compaction.compacting": AT,
    "response.audio.delta": {"delta": "AAA="},
    "response.audio.done": {},
    "response.audio.transcript.delta": {"delta": "Hi."},
    "response.audio.transcript.done": {},
    "response.code_interpreter_call.in_progress": AT,
    "response.code_interpreter_call.interpreting": AT,
    "response.code_interpreter_call.completed": AT,
    "response.code_interpreter_call_code.delta": {**AT, "delta": "1"},
    "response.code_interpreter_call_code.done": {**AT, "code": "1+1"},
    "response.file_search_call.in_progress": AT,
    "response.file_search_call.searching": AT,
    "response.file_search_call.completed": AT,
    "response.web_search_call.in_progress": AT,
    "response.web_search_call.searching": AT,
    "response.web_search_call.completed": AT,
    "response.image_generation_call.in_progress": AT,
    "response.image_generation_call.generating": AT,
    "response.image_generation_call.partial_image": {**AT, "partial_image_index": 0, "partial_image_b64": "AAA="},
    "response.image_generation_call.completed": AT,
    "response.mcp_call.in_progress": AT,
    "response.mcp_call.completed": AT,
    "response.mcp_call.failed": AT,
    "response.mcp_call_arguments.delta": {**AT, "delta": "{"},
    "response.mcp_call_arguments.done": {**AT, "arguments": "{}"},
    "response.mcp_list_tools.in_progress": AT,
    "response.mcp_list_tools.completed": AT,
    "response.mcp_list_tools.failed": AT,
    "response.shell_call_command.added": {**SHELL, "command": ""},
    "response.shell_call_command.delta": {**SHELL, "delta": "l"},
    "response.shell_call_command.done": {**SHELL, "command": "ls"},
    "response.shell_call_output_content.delta": {**AT, "command_index": 0, "delta": {"stdout": "a"}},
    "response.shell_call_output_content.done": {**AT, "command_index": 0, "output": []},
}


def event(kind: str, fields: dict[str, Any], number: int = 0) -> dict[str, Any]:
    return {"type": kind, "sequence_number": number, **fields}
