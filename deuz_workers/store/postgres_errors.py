"""Why a connection to Postgres could not be made: where it was tried, and the kind of the cause, with no account.

libpq gives no SQLSTATE for a connection that was refused, so the server's English text is looked at; a text that is not known
counts as a server that is away for now.
"""

from __future__ import annotations

import psycopg
from psycopg.conninfo import conninfo_to_dict

from deuz_workers.errors import ConfigurationError, StoreRefusedError, StoreUnavailableError

_LASTING = (
    ("28P01", "password authentication failed", "the password is wrong"),
    ("28P01", "no password supplied", "the server wants a password and the URL has none"),
    ("28000", "no pg_hba.conf entry", "pg_hba.conf of the server lets nobody in like this"),
    ("28000", "peer authentication failed", "the role is another one than the account of this process"),
    ("28000", "is not permitted to log in", "the role may not log in"),
    ("28000", 'role "', "the role does not exist"),
    ("3D000", 'database "', "the database does not exist"),
)
"""What does not go away by waiting: SQLSTATE, a piece of the text, the words for it."""
_PASSING = (
    ("Connection refused", "refused: no server listens there"),
    ("No such file or directory", "there is no socket of a server"),
    ("resolve host", "the host name is not known"),
    ("timeout", "no answer in time"),
    ("starting up", "the server is starting"),
    ("shutting down", "the server is shutting down"),
    ("too many", "it has no connection left"),
)


def place_of(url: str) -> str:
    """`database 'x' at host:port` or in a socket folder. Raises `ConfigurationError` for what libpq cannot read."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise ConfigurationError(
            "database_url is no URL that libpq understands; write postgresql://user@host:5432/name, and %XX for odd characters"
        ) from None
    host, port = str(given.get("host") or ""), str(given.get("port") or "")
    if not host:
        where = "of this machine" if not port else f"of this machine, port {port}"
    elif host.startswith("/"):
        where = f"in socket folder {host}" + (f", port {port}" if port else "")
    else:
        where = f"at {host}:{port or 5432}"
    name = given.get("dbname")
    return f"database {str(name)!r} {where}" if name else f"the default database {where}"


def unreachable(error: psycopg.Error, place: str) -> StoreUnavailableError:
    """Our error for a connection that could not be made; `StoreRefusedError` if waiting does not help."""
    text = str(error)
    for state, piece, words in _LASTING:
        if error.sqlstate == state or (error.sqlstate is None and "FATAL" in text and piece in text):
            return StoreRefusedError(
                f"no connection to {place}: {words}; correct database_url (DEUZ_DATABASE_URL)", sqlstate=state
            )
    words = next((words for piece, words in _PASSING if piece in text), "no reason is known")
    return StoreUnavailableError(f"no connection to {place}: {words}")
