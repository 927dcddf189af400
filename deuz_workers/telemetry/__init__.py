"""Traces and metrics, for whoever collects them. OpenTelemetry is imported where it is switched on, and nowhere else."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from deuz_workers.errors import ConfigurationError
from deuz_workers.ports.runtime import Clock
from deuz_workers.ports.telemetry import NoTelemetry, Telemetry

TelemetryMode = Literal["off", "on", "content"]
"""`content`: spans hold prompts, answers, arguments and results too."""


def open_telemetry(mode: TelemetryMode, clock: Clock) -> Telemetry:
    """Raises `ConfigurationError` where it is switched on and OpenTelemetry is not installed."""
    if mode == "off":
        return NoTelemetry()
    if find_spec("opentelemetry") is None:
        raise ConfigurationError("telemetry is on and OpenTelemetry cannot be imported; pip install 'deuz_workers[otel]'")
    from deuz_workers.telemetry.otel import OtelTelemetry

    return OtelTelemetry(clock, content=mode == "content")
