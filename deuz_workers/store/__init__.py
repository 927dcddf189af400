"""Runs in SQL: one store, two dialects (Postgres and SQLite), numbered migrations and named statements."""

from deuz_workers.store.opening import migrate, open_store
from deuz_workers.store.sql_store import SqlStore

__all__ = ["SqlStore", "migrate", "open_store"]
