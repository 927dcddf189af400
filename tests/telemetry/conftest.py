"""An SDK that keeps in memory what is told to it. The API takes one for the life of a process."""

from __future__ import annotations

import functools
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from deuz_workers.store import open_store
from tests.app.world import World
from tests.workers.conftest import pool

__all__ = ["collected", "pool", "world"]


@dataclass
class Collected:
    spans: InMemorySpanExporter
    reader: InMemoryMetricReader

    @property
    def by_name(self) -> Mapping[str, list[ReadableSpan]]:
        found: dict[str, list[ReadableSpan]] = {}
        for span in self.spans.get_finished_spans():
            found.setdefault(span.name, []).append(span)
        return found

    @property
    def metrics(self) -> dict[str, Any]:
        """Metrics by name."""
        data = self.reader.get_metrics_data()
        assert data is not None
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        return {metric.name: metric for scope in scopes if scope.scope.name == "deuz_workers" for metric in scope.metrics}


@functools.cache
def _sdk() -> Collected:
    collected = Collected(InMemorySpanExporter(), InMemoryMetricReader())
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(collected.spans))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([collected.reader]))
    return collected


@pytest.fixture
def collected() -> Generator[Collected]:
    """What is told during the test; metrics since the process began."""
    sdk = _sdk()
    sdk.spans.clear()
    yield sdk
    sdk.spans.clear()


@pytest.fixture
async def world() -> Any:
    """A store in memory, and processes over it."""
    made = World("sqlite://:memory:", open_store("sqlite://:memory:"))
    yield made
    await made.close()
