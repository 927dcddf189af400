"""People in front of pages: they sign in, look, and send forms, without a browser."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.gateway.serving import WAIT_S, Served


@dataclass
class Person:
    """With the cookies of a browser; follows no redirect by itself."""

    http: httpx.AsyncClient

    async def look(self, path: str, status: int = 200, **given: Any) -> str:
        """The page there."""
        answer = await self.http.get(path, **given)
        assert answer.status_code == status, (answer.status_code, answer.text[-2000:])
        return answer.text

    async def sign_in(self, token: str, **fields: str) -> httpx.Response:
        page = await self.look("/console/sign-in")
        return await self.http.post("/console/sign-in", data={**hidden_of(page), "token": token, **fields})

    async def send(self, page: str, action: str, **fields: str) -> httpx.Response:
        """The form of the page whose address ends with `action`, filled in."""
        address, values = form_of(page, action)
        return await self.http.post(address, data={**values, **fields})


@asynccontextmanager
async def person(gate: Served, name: str = "ann", *scopes: str, url: str | None = None) -> AsyncGenerator[Person]:
    """Signed in with a new token."""
    header = await gate.token(name, *(scopes or ("default",)))
    async with stranger(url or gate.url) as found:
        answer = await found.sign_in(header["authorization"].removeprefix("Bearer "))
        assert answer.status_code == 303, answer.text
        yield found


@asynccontextmanager
async def stranger(url: str) -> AsyncGenerator[Person]:
    async with httpx.AsyncClient(base_url=url, timeout=WAIT_S) as client:
        yield Person(client)


def form_of(page: str, action: str) -> tuple[str, Mapping[str, str]]:
    """Address and hidden fields of a form of the page, by the end of the path that it, or a button of it, is sent to."""
    for form in re.findall(r"<form[^>]*method=\"post\".*?</form>", page, re.DOTALL):
        for address in re.findall(r"(?:form)?action=\"([^\"]*)\"", form):
            plain = html.unescape(address)
            if plain.partition("?")[0].endswith(action):
                return plain, hidden_of(form)
    raise AssertionError(f"no form is sent to {action}")


def hidden_of(form: str) -> dict[str, str]:
    fields = re.findall(r"<input type=\"hidden\" name=\"([^\"]*)\" value=\"([^\"]*)\">", form)
    return {name: html.unescape(value) for name, value in fields}
