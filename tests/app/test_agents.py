"""Agents, reducers and applications: what they are made of, and how a mistake is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from deuz_workers import (
    Agent,
    Budget,
    ChatCompletionsModel,
    ConfigurationError,
    Deuz,
    Limits,
    MockModel,
    Reducer,
    ReducerContext,
    ToolContext,
    UnknownAgentError,
    reducer,
    tool,
    tool_from_schema,
)


def read(path: str) -> str:
    """Read a file."""
    return path


@tool
def write(path: str) -> str:
    """Write a file."""
    return path


def three(a: object, b: object, c: object) -> object:
    return a, b, c


MODEL = MockModel(["ok"])


def test_functions_become_tools_and_names_become_models() -> None:
    """Plain functions, decorated ones and tools from a schema side by side; the model of a name is a real one."""

    def ask(arguments: dict[str, object], context: ToolContext) -> str:
        return "answer"

    schema = {"type": "object", "properties": {}}
    agent = Agent("x", model="openai:gpt-5-mini", tools=[read, write, tool_from_schema("ask", "Ask.", schema, ask)])
    assert list(agent.tools) == ["read", "write", "ask"]
    assert agent.tools["read"].spec.description == "Read a file."
    assert isinstance(agent.model, ChatCompletionsModel)
    assert (agent.model.name, agent.limits, agent.queue) == ("openai:gpt-5-mini", Limits(), "default")
    assert repr(agent) == "<Agent 'x' openai:gpt-5-mini, 3 tools>"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "my agent"}, "an agent cannot be called 'my agent'"),
        ({"name": "-x"}, "an agent cannot be called '-x'"),
        ({"name": 7}, "a int"),
        ({"model": "gpt-5"}, "no model is called 'gpt-5'"),
        ({"model": 7}, "agent 'x': model is a int"),
        ({"tools": [read, read]}, "agent 'x' has two tools named 'read'"),
        ({"tools": [tool(name="write")(read), write]}, "two tools named 'write'"),
        ({"tools": ["read"]}, "a str is no tool"),
        ({"limits": Limits(max_steps=0)}, "limit max_steps is a whole number from 1"),
        ({"limits": Limits(max_retries=-1)}, "limit max_retries is a whole number from 0"),
        ({"max_output_tokens": 0}, "max_output_tokens is a whole number from 1"),
        ({"temperature": "hot"}, "temperature is a number"),
        ({"instructions": 5}, "instructions is text"),
        ({"budget": 5}, "agent 'x': the budget is a int"),
        ({"budget": Budget(tokens=-1)}, "to zero or more"),
        ({"queue": "a/b"}, "agent 'x': the queue cannot be called 'a/b'"),
    ],
)
def test_what_cannot_be_an_agent_is_refused(given: dict[str, object], words: str) -> None:
    """A ConfigurationError that names agent and value."""
    with pytest.raises(ConfigurationError, match=words):
        Agent(**({"name": "x", "model": MODEL} | given))  # pyright: ignore[reportArgumentType]


def test_a_reducer_takes_results_and_perhaps_a_context() -> None:
    """One argument or two, plain, async, callable or builtin; it stays callable as it is."""

    @reducer
    def one(results: Mapping[str, object]) -> int:
        return len(results)

    @reducer(name="two", replay_safe=False)
    async def both(results: Mapping[str, object], context: ReducerContext) -> str:
        return context.task_id

    assert (one.name, both.name, both.definition.replay_safe, one({"a": 1})) == ("one", "two", False, 1)
    assert Reducer("all", dict).definition.reduce({"a": 1}, None) == {"a": 1}  # pyright: ignore[reportArgumentType]
    assert repr(one) == "<Reducer 'one'>"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: reducer(lambda: 1), "cannot be called '<lambda>'"),
        (lambda: Reducer("r", lambda: 1), "gets the results"),
        (lambda: Reducer("r", three), "gets the results"),
        (lambda: Reducer("r", 5), "a int is no function"),  # pyright: ignore[reportArgumentType]
        (lambda: Reducer("r", dict, timeout_ms=0), "timeout_ms is a whole number from 1"),
    ],
)
def test_what_cannot_be_a_reducer_is_refused(make: Callable[[], object], words: str) -> None:
    """A ConfigurationError that names reducer and value."""
    with pytest.raises(ConfigurationError, match=words):
        make()


def test_names_of_an_application_are_unique() -> None:
    """Over agents and reducers together; and only those go in."""
    x, y = Agent("x", model=MODEL), Reducer("x", dict)
    with pytest.raises(ConfigurationError, match="agent 'x' is there twice"):
        Deuz([x, x])
    with pytest.raises(ConfigurationError, match="'x' is an agent and a reducer"):
        Deuz([x], reducers=[y])
    with pytest.raises(ConfigurationError, match="a Reducer is not an agent"):
        Deuz([y])  # pyright: ignore[reportArgumentType]
    app = Deuz([x], reducers=[Reducer("y", dict)])
    assert app.registry.names == {"x", "y"}


def test_an_unknown_agent_is_told_what_there_is() -> None:
    """The nearest name, else all of them."""
    app = Deuz([Agent("reviewer", model=MODEL), Agent("planner", model=MODEL)])
    with pytest.raises(UnknownAgentError, match="did you mean 'planner'"):
        app.registry.check_agent("planer")
    with pytest.raises(UnknownAgentError, match="known are planner, reviewer"):
        app.registry.check_agent("zzz")


def test_an_application_connects_to_nothing_by_being_made() -> None:
    """Neither settings nor store are looked at before somebody asks."""
    app = Deuz([Agent("x", model=MODEL)])
    assert not {"settings", "store", "leases", "doorbell", "aio"} & set(vars(app))
