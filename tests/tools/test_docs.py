"""The page about tools: its code runs, and it promises no more than is true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from deuz_workers.errors import ToolError
from tests.tools.contexts import context

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"


def plain_text() -> str:
    return " ".join(PAGE.read_text().replace("**", "").split())


async def test_the_code_of_the_page_runs() -> None:
    """All blocks together are one program, whose tools do what the page says."""
    found: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(block, PAGE.name, "exec", dont_inherit=True), found)
    pay_back, charge = found["pay_back"], found["charge"]
    assert pay_back.spec.parameters["properties"]["reason"]["description"] == "one sentence that the customer reads"
    assert "reason" not in pay_back.spec.description
    small, large = ({"refund": {"order": "o", "amount": amount}, "reason": "r"} for amount in (7, 700))
    assert (pay_back.needs_approval(small), pay_back.needs_approval(large)) == (False, True)
    assert await pay_back.run(small, context()) == "paid 7 for o under run-1/2/call-1"
    with pytest.raises(ToolError, match="ask the customer"):
        await pay_back.run({"refund": {"order": "o", "amount": 0}, "reason": "r"}, context())
    assert charge.replay == "idempotent"


@pytest.mark.spec("RCP-014")
def test_the_page_promises_no_exactly_once() -> None:
    """It says that receipts do not give exactly-once effects across an external system."""
    assert "Receipts do not give exactly-once effects across an external system." in plain_text()


@pytest.mark.spec("LED-015")
def test_the_page_says_what_the_ledger_does_not_see() -> None:
    """It says that traffic of the application's own is outside the ledger."""
    assert "What your tools send over the network themselves" in plain_text()
    assert "is outside it, unless you account for it" in plain_text()


def test_links_lead_somewhere() -> None:
    """Every relative link of the page names a file."""
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE.read_text())
    assert links
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
