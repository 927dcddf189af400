"""Prices, the bound of a reservation, and models by name."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deuz_workers.core.estimate import DEFAULT_OUTPUT_TOKENS, tool_bytes, usage_bound
from deuz_workers.core.history import History
from deuz_workers.core.messages import user
from deuz_workers.core.usage import Usage
from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.model import ModelRequest, ToolSpec
from deuz_workers.providers import (
    AnthropicModel,
    ChatCompletionsModel,
    GeminiModel,
    MockModel,
    Price,
    PriceList,
    model_from_name,
)

USED = Usage(1_000, 1_000, cached_tokens=500)


@pytest.mark.parametrize("model", ["openai:gpt-4.1", "openai:gpt-4.1-2025-04-14"])
def test_a_listed_model_has_its_price(model: str) -> None:
    """Dated names are priced like the model; cached input is cheaper. Prices per million: 2, 0.5 cached, 8 dollars."""
    assert PriceList().cost_micros(model, USED) == 500 * 2 + 500 // 2 + 1_000 * 8


@pytest.mark.parametrize(
    "model",
    ["openai:no-such-model", "compatible:gpt-4.1", "vllm:gpt-4.1", "mock:scripted", "gpt-4.1", "openai:", ":gpt-4.1", ""],
)
def test_an_unknown_price_is_none(model: str) -> None:
    """Neither zero nor the price of a model that is called alike elsewhere."""
    assert PriceList().cost_micros(model, USED) is None


def test_the_application_knows_better() -> None:
    """Its own prices come before the tables, one model before its provider; fractions are rounded up."""
    prices = PriceList({"openai:gpt-4.1": Price(1, 2, 0.1), "ollama:*": Price(0, 0), "ollama:big": Price(0.1, 0)})
    assert prices.cost_micros("openai:gpt-4.1", USED) == 500 + 50 + 2_000
    assert prices.cost_micros("ollama:small", USED) == 0
    assert prices.cost_micros("ollama:big", Usage(10, 7)) == 1
    assert prices.cost_micros("ollama:big", Usage(11, 7)) == 2
    assert prices.cost_micros("openai:gpt-4.1-mini", USED) == 500 * 4 // 10 + 500 // 10 + 1_000 * 16 // 10


def test_what_is_written_to_a_cache_has_its_own_price() -> None:
    """In the tables and in prices of one's own; it is part of the input, so no token is paid for twice."""
    used = Usage(1_000, 1_000, cached_tokens=500, cache_write_tokens=200)
    plain = PriceList({"a:m": Price(1, 2)})
    assert plain.cost_micros("a:m", used) == plain.cost_micros("a:m", Usage(1_000, 1_000)) == 3_000
    assert PriceList({"a:m": Price(1, 2, 0.1, 1.25)}).cost_micros("a:m", used) == 300 + 50 + 250 + 2_000
    assert PriceList({"a:m": Price(1, 0, 0, 0)}).cost_micros("a:m", Usage(10, 0, 8, cache_write_tokens=9)) == 0
    listed = [
        PriceList().cost_micros("anthropic:claude-sonnet-4-5", one)
        for one in (Usage(1_000, 0), Usage(1_000, 0, cache_write_tokens=1_000))
    ]
    assert listed == [3_000, 3_750]


def test_the_bound_covers_text_and_answer() -> None:
    """A token for three bytes of UTF-8, so a Chinese character counts as a whole one, and the answer that may come."""
    short, chinese = History([user("abc" * 100)]), History([user("中" * 100)])
    assert short.size_bytes == chinese.size_bytes
    bound = usage_bound(chinese.size_bytes, 50)
    assert bound.input_tokens >= 100
    assert (bound.output_tokens, bound.total_tokens) == (50, bound.input_tokens + 50)
    assert usage_bound(0, None).output_tokens == DEFAULT_OUTPUT_TOKENS
    assert usage_bound(300, 1, writes_cache=True) == replace(usage_bound(300, 1), cache_write_tokens=100)
    spec = ToolSpec("add", "Adds é.", {"type": "object"})
    assert tool_bytes([spec, spec]) == 2 * tool_bytes([spec]) > 2 * len("addAdds é.")


def test_models_by_name() -> None:
    """The prefix says which server, the rest which model."""
    assert model_from_name("openai:gpt-4.1").name == "openai:gpt-4.1"
    assert type(model_from_name("anthropic:claude-opus-5-5")) is AnthropicModel
    assert model_from_name("anthropic:claude-opus-5-5").name == "anthropic:claude-opus-5-5"
    assert type(model_from_name("google:gemini-3.8-flash")) is GeminiModel
    assert model_from_name("google:gemini-3.8-flash").name == "google:gemini-3.8-flash"
    assert model_from_name("compatible-messages:m", base_url="http://h/v1").name == "compatible:m"
    assert model_from_name("ollama:qwen3:8b").name == "ollama:qwen3:8b"
    assert model_from_name("compatible:m", base_url="http://localhost:8000/v1/", api_key="k").name == "compatible:m"
    assert model_from_name("compatible:m", base_url="http://h/v1", provider="vllm").name == "vllm:m"


@pytest.mark.parametrize("name", ["gpt-4.1", "nobody:gpt", "openai:", "", "compatible:m"])
def test_a_name_that_means_no_model(name: str) -> None:
    """A typed error that tells what can be written instead."""
    with pytest.raises(ConfigurationError, match=r"write one of openai:MODEL|pass base_url="):
        model_from_name(name)


async def test_the_server_runs_as_a_command(tmp_path: Path) -> None:
    """It prints its URL, serves the script it is given, and ends at a SIGTERM."""
    (tmp_path / "script_of_test.py").write_text(
        "from deuz_workers.providers.script import call\nSCRIPT = [call('add', a=1), 'done']\n"
    )
    root = Path(__file__).parent.parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(tmp_path)])}
    for arguments, text, name in (([], "You said: hi", None), (["--script", "script_of_test:SCRIPT"], "", "add")):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "deuz_workers.testing.model_server",
            *arguments,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        base_url = (await process.stdout.readline()).decode().strip()
        model = ChatCompletionsModel("m", base_url)
        got = await model.call(ModelRequest("r", (user("hi"),), timeout_ms=20_000))
        assert got.message.text == text
        assert [use.name for use in got.message.tool_uses] == ([name] if name else [])
        await model.close()
        process.terminate()
        assert await process.wait() == 0


def test_the_scripted_model_is_a_model() -> None:
    """Its name has the same form, so that prices can be given for it."""
    assert PriceList({MockModel([]).name: Price(1, 1)}).cost_micros(MockModel([]).name, Usage(10, 5)) == 15


def test_a_file_of_prices_goes_before_the_tables(tmp_path: Path) -> None:
    """Behind what the application gave; a stated price is for models that nothing else knows."""
    path = tmp_path / "prices.toml"
    path.write_text(
        '["a:x"]\ninput_usd = 1\noutput_usd = 2.5\n["b:y"]\ninput_usd = 7\noutput_usd = 7\n'
        '["*"]\ninput_usd = 3\noutput_usd = 4\n'
    )
    prices = PriceList({"b:y": Price(1, 1)})
    prices.read(path)
    used = Usage(10, 4)
    assert [prices.cost_micros(model, used) for model in ("a:x", "b:y", "nobody:knows")] == [20, 14, 46]
    listed = PriceList().cost_micros("openai:gpt-4o", used)
    assert listed is not None
    assert prices.cost_micros("openai:gpt-4o", used) == listed


@pytest.mark.parametrize(
    "text",
    [
        "no toml",
        '["a:x"]\ninput_usd = 1\n',
        '["a:x"]\ninput_usd = -1\noutput_usd = 1\n',
        '["a:x"]\ninput_usd = "1"\noutput_usd = 1\n',
        '["a:x"]\ninput_usd = nan\noutput_usd = 1\n',
        '["a:x"]\ninput_usd = 1\noutput_usd = 1\nmarkup = 2\n',
        "a = 1\n",
    ],
)
def test_a_file_that_holds_no_prices_is_named(tmp_path: Path, text: str) -> None:
    """And nothing of it is taken."""
    path = tmp_path / "prices.toml"
    path.write_text(text)
    prices = PriceList()
    with pytest.raises(ConfigurationError, match=r"prices\.toml"):
        prices.read(path)
    assert prices.cost_micros("a:x", Usage(1, 1)) is None
