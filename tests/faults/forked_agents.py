"""An application that uses the database while it is imported, which a prefork worker does before it forks."""

from __future__ import annotations

import os
from typing import Any, cast

import psycopg

from deuz_workers.app.agent import Agent
from deuz_workers.app.deuz import Deuz
from deuz_workers.app.loop_thread import LOOP
from deuz_workers.tools.decorator import tool
from tests.workers.agents import LONG, many, trace


@tool
async def write(n: int) -> str:
    """Tell the process, and whether the connection that its store works with is encrypted."""
    pool: Any = await cast(Any, app.store).dialect._pool()
    async with pool.connection() as connection:
        trace("write", f"{os.getpid()} {connection.pgconn.ssl_in_use} {connection.pgconn.socket}")
    return f"wrote {n}"


app = Deuz([Agent("worker", model=many("write"), tools=[write], limits=LONG)])

# Both stay open over the fork: a connection of the author's, and the pool of the application itself.
own = psycopg.connect(os.environ["DEUZ_DATABASE_URL"], autocommit=True)
own.execute("SELECT 1")
assert own.pgconn.ssl_in_use
LOOP.run(app.store.check_schema())
