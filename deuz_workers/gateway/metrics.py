"""What a gateway process counts, as Prometheus reads it. No label names a tenant, a run or a person.

=========================================  =========  ==========================================================
`deuz_gateway_requests_total`              counter    answered requests, by `operation` and `status`
`deuz_gateway_request_seconds`             histogram  how long they took, streams apart, by `operation`
`deuz_gateway_streams`                     gauge      readers that are being sent a stream
`deuz_gateway_recorders`                   gauge      runs that are being recorded for readers
`deuz_gateway_refused_total`               counter    requests without good credentials
=========================================  =========  ==========================================================
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    def __init__(self, recorders: Callable[[], int]) -> None:
        self._registry = registry = CollectorRegistry()
        labels = ("operation",)
        self.requests = Counter("deuz_gateway_requests", "Answered requests.", (*labels, "status"), registry=registry)
        self.seconds = Histogram(
            "deuz_gateway_request_seconds", "How long they took, streams apart.", labels, registry=registry
        )
        self.streams = Gauge("deuz_gateway_streams", "Readers that are being sent a stream.", registry=registry)
        self.refused = Counter("deuz_gateway_refused", "Requests without good credentials.", registry=registry)
        Gauge("deuz_gateway_recorders", "Runs that are being recorded.", registry=registry).set_function(recorders)

    def text(self) -> bytes:
        return generate_latest(self._registry)
