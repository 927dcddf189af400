"""Which version of record a run is asked to have, and the refusal of one that its store does not keep."""

from __future__ import annotations

from urllib.parse import urlsplit

from deuz_workers.errors import ConfigurationError, UnsupportedStoreError
from deuz_workers.ports.store import RunStore
from deuz_workers.store import SqlStore

FEATURE = "agent-run-v3"


def check_record_version(asked: int | None, store: str | RunStore | None) -> UnsupportedStoreError | None:
    """Why a run of this version cannot be in `store`; None where it can. Nothing of the store is asked.

    No store of this release keeps records of version 3. Raises `ConfigurationError` for a version that there is not.
    """
    if asked is None:
        return None
    if asked != 3:
        raise ConfigurationError(f"checkpoint_version is 3, or left out for the record that every store keeps, not {asked!r}")
    backend = _backend(store)
    return UnsupportedStoreError(
        f"records of version 3 are not kept in a {backend} store; leave checkpoint_version out",
        backend=backend,
        feature=FEATURE,
    )


def _backend(store: str | RunStore | None) -> str:
    if store is None:
        return "memory"
    if isinstance(store, str):
        scheme = urlsplit(store).scheme
        return {"rediss": "redis", "postgresql": "postgres"}.get(scheme, scheme or "unknown")
    return store.dialect.name if isinstance(store, SqlStore) else type(store).__name__
