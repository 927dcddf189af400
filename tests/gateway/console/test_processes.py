"""The console over Postgres and Valkey: two gateway processes, a Celery worker, and somebody who signed in once."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from playwright.async_api import expect

from deuz_workers.app.access_tokens import AccessTokens
from deuz_workers.app.loop_thread import LOOP
from tests.faults.talking_agents import ANSWER
from tests.gateway.console.markup import text_of
from tests.gateway.console.people import form_of, hidden_of
from tests.gateway.console.window import signed_in
from tests.gateway.test_pool import Gateways, gateways
from tests.workers.conftest import pool
from tests.workers.pool import DEADLINE_S, Pool

__all__ = ["gateways", "pool"]

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


async def test_a_dead_workers_words_vanish_from_the_page(pool: Pool, gateways: Gateways, chromium: Path) -> None:
    """They are shown while they are written and again after a reload; when another worker begins anew they are gone, and the
    page ends with the answer that was saved."""
    first = pool.start()
    gate = gateways.start()
    token = gateways.headers["authorization"].removeprefix("Bearer ")
    async with signed_in(chromium, gate.url, token) as ann, httpx.AsyncClient(headers=gateways.headers) as client:
        started = await client.post(f"{gate.url}/v1/runs", json={"agent": "talker", "prompt": "gate", "stream": True})
        await ann.look(f"/console/runs/{started.json()['run_id']}")
        live = ann.page.locator("#live .said")
        await expect(live).to_have_text(f"of {first.pid}: first half,")
        await ann.page.reload()
        await expect(live).to_have_text(f"of {first.pid}: first half,")
        first.kill()
        pool.start()
        await expect(live).to_have_text("first half,")
        pool.go("gate")
        await expect(ann.page.locator(".chip").first).to_have_text("completed")
        await expect(ann.page.locator("[data-part='output'] .said")).to_have_text(ANSWER)
        await expect(ann.page.locator("[data-turn='1'] .said")).to_have_text(ANSWER)
        await expect(live).to_have_count(0)
        await ann.check()


def test_a_session_outlives_the_gateway_that_began_it(pool: Pool, gateways: Gateways) -> None:
    """Signed in at one process, approved at another after the first was killed; the page shows the end."""
    pool.start()
    first, second = gateways.start(), gateways.start()
    token = LOOP.run(AccessTokens(pool.app.store, pool.app.ids).create("ann", ["default"])).token
    with httpx.Client(timeout=DEADLINE_S) as ann:
        page = ann.get(f"{first.url}/console/sign-in").text
        answer = ann.post(f"{first.url}/console/sign-in", data={**hidden_of(page), "token": token})
        assert (answer.status_code, answer.headers["location"]) == (303, "/console/runs")
        started = ann.post(f"{first.url}/v1/runs", json={"agent": "signer", "prompt": "x"}, headers=gateways.headers)
        run_id = started.json()["run_id"]

        def status() -> str:
            """Once it has something to report."""
            answer = ann.get(f"{second.url}/v1/runs/{run_id}", params={"wait_ms": 30_000}, headers=gateways.headers)
            return answer.json()["status"]

        assert status() == "suspended"
        assert "Approve sign?" in text_of(ann.get(f"{first.url}/console/waiting").text)
        first.kill()
        address, fields = form_of(ann.get(f"{second.url}/console/runs/{run_id}").text, "/approve")
        assert ann.post(second.url + address, data=fields).status_code == 303
        assert status() == "completed"
        text = text_of(ann.get(f"{second.url}/console/runs/{run_id}").text)
        for word in ("approved by ann", "it is done", "completed"):
            assert word in text
    assert token not in second.log.read_text()
