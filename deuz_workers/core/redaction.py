"""Secrets in texts that leave the system: keys, tokens and passwords become `***`, whatever library wrote the text.

What a secret looks like is a guess, so this is the second line of defence; the first is that such texts are not sent.
Each pattern takes time in proportion to the text, whatever is in it: texts come from outside, and event loops wait.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import cast

MASK = "***"

_SHAPES = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{6,}"),  # OpenAI, Anthropic, Stripe
    re.compile(r"\bdeuz_[A-Za-z0-9]+_[A-Za-z0-9_-]{16,}"),  # ours
    re.compile(r"\bAIza[A-Za-z0-9_-]{20,}"),  # Google
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}"),  # AWS
    re.compile(r"\b(?:gh[opsur]|github_pat|glpat|xox[abprs])[-_][A-Za-z0-9_-]{8,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,2}"),  # JSON web tokens, and what else begins like one
)
_NAMED = re.compile(
    r"""((?:api[-_ ]?key|access[-_ ]?token|auth[-_ ]?token|client[-_ ]?secret|password|passwd|secret|token)"""
    r"""["']?\s*[:=]\s*["']?)"""
    r"""([^\s"'&,;)}\]]{4,})""",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b((?:Bearer|Basic)\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_ACCOUNT = re.compile(r"([a-z][a-z0-9+.-]{0,30}://[^\s/:@]*:)[^\s/@]+@", re.IGNORECASE)


def redact(text: str) -> str:
    """The text with what looks like a secret masked."""
    for shape in _SHAPES:
        text = shape.sub(MASK, text)
    text = _BEARER.sub(rf"\1{MASK}", text)
    text = _ACCOUNT.sub(rf"\1{MASK}@", text)
    return _NAMED.sub(rf"\1{MASK}", text)


def redact_all(value: object) -> object:
    """Plain data with all its texts redacted, names of fields apart."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {name: redact_all(item) for name, item in cast(Mapping[object, object], value).items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [redact_all(item) for item in cast(Sequence[object], value)]
    return value
