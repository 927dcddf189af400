"""Keys stay where they were given: nothing that a run leaves behind repeats one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from deuz_workers import Agent, Deuz, Limits, Settings, stream_agent
from deuz_workers.providers.script import reply
from deuz_workers.testing.model_faults import Served, cut, garbage, refuse
from deuz_workers.testing.model_server import ModelServer
from tests.providers.wires import WIRES

KEY = "sk-planted-Key0123456789"
TOKEN = "planted-token-9876543210"
REPEATED = f"wrong key {KEY}, token {TOKEN}"

ANSWERS: dict[str, Served | str] = {
    "well": "done",
    "refused": refuse(401, code=KEY, message=REPEATED),
    "bad request": refuse(400, code=TOKEN, message=REPEATED),
    "no such model": refuse(404, code="model_not_found", message=REPEATED),
    "rate limit": refuse(429, code=KEY, message=REPEATED),
    "failed": refuse(500, message=REPEATED),
    "no JSON": garbage(f"data: {REPEATED}\n\n".encode()),
    "reported in a stream": garbage(b'data: {"type":"error","error":{"code":"' + KEY.encode() + b'","message":"x"}}\n\n'),
    "cut": cut(reply("hello there"), 60),
    "another type": Served(REPEATED.encode(), content_type=f"text/{KEY}"),
}


@pytest.mark.spec("WIR-009")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_planted_key_is_found_nowhere(wire: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a provider answers, and also where it repeats key and token itself: they are in no error, result, event of the
    stream or the journal, stored byte or line of a log at any level.

    But for one line that is not ours: at DEBUG the HTTP library shows the headers of a response, also where a server puts the
    key into them.
    """
    url = f"sqlite:///{tmp_path}/runs.db"
    said: list[Any] = []
    with caplog.at_level(logging.DEBUG):
        for name, answer in ANSWERS.items():
            with ModelServer([answer]) as server:
                model = WIRES[wire].model(server, api_key=KEY, headers={"X-Token": TOKEN}, max_retries=1)
                agent = Agent("x", model=model, limits=Limits(max_retries=0))
                running = stream_agent(agent, "go", run_id=name.replace(" ", "-"), store=url)
                said += [event async for event in running.events]
                result = await running.result
                assert (result.status == "completed") == (name == "well")
                sent = [str(request.headers) for request in server.requests]
                assert all(KEY in headers and TOKEN in headers for headers in sent)
                said += [result, result.error, repr(model), repr(agent)]
        app = Deuz(settings=Settings(database_url=url, redis_url=None, broker_url=None, leases_url="memory://"))
        for name in ANSWERS:
            handle = app.aio.handle(name.replace(" ", "-"))
            said += [event async for event in handle.events(follow=False)]
            said.append(await handle.report())
        await app.aclose()
    ours = [record for record in caplog.records if not record.getMessage().startswith("receive_response_headers.")]
    lines = [f"{record.getMessage()} {vars(record)}" for record in ours]
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert len(said) > 4 * len(ANSWERS)
    assert b"refused" in stored
    for secret in (KEY, TOKEN):
        assert not [text for text in map(repr, said) if secret in text]
        assert not [line for line in lines if secret in line]
        assert secret.encode() not in stored
