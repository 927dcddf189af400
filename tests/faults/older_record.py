"""A database that loses commits: what a failover to a standby that was behind leaves of one run."""

from __future__ import annotations

import psycopg
from psycopg import sql

TABLES = "select table_name from information_schema.columns where column_name = 'rid' and table_schema = 'public'"


class OlderRecord:
    """All rows of a run as they are now, to be put back later. Raises AssertionError where there is no such run."""

    def __init__(self, url: str, run_id: str) -> None:
        self._url = url
        with psycopg.connect(url) as connection:
            row = connection.execute("select rid, revision from run_head where run_id = %s", [run_id]).fetchone()
            assert row is not None
            self._rid, self.revision = row
            self._tables: list[str] = [name for (name,) in connection.execute(TABLES) if not name.startswith("older_")]
            for table in self._tables:
                names = {"table": sql.Identifier(table), "copy": sql.Identifier(f"older_{table}")}
                statement = sql.SQL("create table {copy} as select * from {table} where rid = {rid}")
                connection.execute(statement.format(**names, rid=sql.Literal(self._rid)))

    def put_back(self) -> None:
        """In one transaction: nobody sees the run without rows."""
        with psycopg.connect(self._url) as connection:
            for table in self._tables:
                names = {"table": sql.Identifier(table), "copy": sql.Identifier(f"older_{table}")}
                connection.execute(sql.SQL("delete from {table} where rid = {rid}").format(**names, rid=sql.Literal(self._rid)))
                connection.execute(sql.SQL("insert into {table} overriding system value select * from {copy}").format(**names))
