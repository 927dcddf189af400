"""What a model reads of a docstring."""

from __future__ import annotations

import pytest

from deuz_workers.tools.decorator import tool
from deuz_workers.tools.docstring import read_docstring

GOOGLE = """
    Send money.

    Only between own accounts.

    Args:
        amount (int): how much,
            in cents
        to: the receiver: an IBAN

    Returns:
        The new balance.

    Raises:
        ValueError: not enough
    """

NUMPY = """
    Send money.

    Only between own accounts.

    Parameters
    ----------
    amount : int, optional
        how much,
        in cents
    to
        the receiver: an IBAN

    Returns
    -------
    int
        The new balance.

    Raises
    ------
    ValueError
        not enough
    """

SPHINX = """
    Send money.

    Only between own accounts.

    :param int amount: how much,
        in cents
    :param to: the receiver: an IBAN
    :type to: str
    :raises ValueError: not enough
    """

PLAIN = """
    Send money.

    Only between own accounts.

    amount: how much,
        in cents
    to: the receiver: an IBAN
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX, PLAIN], ids=["google", "numpy", "sphinx", "plain"])
def test_parameters_are_found_in_every_style(text: str) -> None:
    """Descriptions over several lines become one; they are taken out of the tool's description, errors too."""
    doc = read_docstring(text, ["amount", "to"])
    assert doc.parameters == {"amount": "how much, in cents", "to": "the receiver: an IBAN"}
    assert doc.description.startswith("Send money.\n\nOnly between own accounts.")
    assert not any(word in doc.description for word in ("cents", "IBAN", "not enough", "Raises", "Args", "Parameters"))


@pytest.mark.parametrize("text", [GOOGLE, NUMPY], ids=["google", "numpy"])
def test_what_comes_back_is_told(text: str) -> None:
    """What a tool returns helps a model to choose it."""
    assert "The new balance." in read_docstring(text, ["amount", "to"]).description


@pytest.mark.parametrize(
    ("text", "description", "parameters"),
    [
        (None, "", {}),
        ("", "", {}),
        ("One line.", "One line.", {}),
        ("Note: not a parameter.", "Note: not a parameter.", {}),
        ("\nArgs:\n    a: first\n    ctx: the context\n", "", {"a": "first"}),
        ("\nArgs:\n    a:\n        below\n    b (dict[str, (int)]): other\n", "", {"a": "below", "b": "other"}),
        ("x\n\n- a: first\n- `b`: second", "x", {"a": "first", "b": "second"}),
        ("Parameters\n----------\na, b : int\n    both\n", "", {"a": "both", "b": "both"}),
        ("Args:\nnothing is indented", "nothing is indented", {}),
        ("Args:", "", {}),
        ("----\n\n:::", "----\n\n:::", {}),
    ],
)
def test_odd_docstrings_lose_nothing(text: str | None, description: str, parameters: dict[str, str]) -> None:
    """Text that follows no style stays text, and parameters that a model does not fill in are not mentioned."""
    doc = read_docstring(text, ["a", "b"])
    assert (doc.description, doc.parameters) == (description, parameters)


def test_descriptions_reach_the_schema() -> None:
    """An annotation's own description wins over the docstring, and an explicit description over the docstring's."""

    @tool
    def pay(amount: int, to: str) -> None:
        """Send money.

        Args:
            amount: in cents
            to: an IBAN
        """

    assert pay.spec.description == "Send money."
    assert pay.spec.parameters["properties"] == {
        "amount": {"type": "integer", "description": "in cents"},
        "to": {"type": "string", "description": "an IBAN"},
    }
    assert tool(pay.__wrapped__, description="Else.").spec.description == "Else."  # pyright: ignore
