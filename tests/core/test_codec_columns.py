"""Text of the codec in the columns it is made for."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import psycopg
import pytest

from deuz_workers.core.codec import decode, encode
from tests.core.codec_samples import FIELD_REPORT, LOOK_ALIKES, MORE, same

STORED = {**FIELD_REPORT, **MORE, "look-alikes": LOOK_ALIKES}


@pytest.mark.spec("STO-010")
def test_text_column_of_sqlite_keeps_every_value() -> None:
    """A TEXT column of SQLite gives every text back, and counts its characters, which stop at a NUL if there is one."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE bodies (name TEXT, body TEXT) STRICT")
        for name, value in STORED.items():
            connection.execute("INSERT INTO bodies VALUES (?, ?)", (name, encode(value)))
        for name, body, length in connection.execute("SELECT name, body, length(body) FROM bodies"):
            assert len(body) == length
            assert same(decode(body), STORED[name]), name


@pytest.mark.spec("STO-010")
def test_text_column_of_postgres_keeps_every_value(postgres_dsn: str) -> None:
    """A TEXT column of Postgres gives every text back, sent as text or binary."""
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("CREATE TABLE bodies (name text, body text)")
        for name, value in STORED.items():
            connection.execute("INSERT INTO bodies VALUES (%s, %s)", (name, encode(value)))
        for binary in (False, True):
            rows: list[tuple[str, str]] = connection.execute("SELECT name, body FROM bodies", binary=binary).fetchall()
            assert len(rows) == len(STORED)
            for name, body in rows:
                assert same(decode(body), STORED[name]), name
