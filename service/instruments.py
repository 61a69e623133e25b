"""What Prometheus may scrape: counts and times of this process, and the installation's totals. No job id is a label."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest

from service.states import JobState
from service.store.totals import Totals
from service.version import service_version

_GAUGES: Mapping[str, str] = {
    "sse_clients": "Event streams open.",
    "workers": "Workers that train now.",
    "workers_desired": "Workers that the service steers to.",
    "worker_seconds": "Worker seconds used by the jobs that are stored.",
    "samples": "Samples trained by the jobs that are stored.",
    "reconciler_heartbeat_age_seconds": "Since the reconciler's last sign of life; NaN before the first.",
    "cluster_up": "1 when Ray answered the reconciler last.",
    "wire_bytes_per_second": "Bytes that workers send for gradients now, as their kernels count them.",
    "wire_ratio": "What those would be in fp32, over what they are; NaN where none are sent.",
}
_EXCHANGE_GAUGES: Mapping[str, str] = {
    "step_seconds": "Of an optimizer step of jobs that exchange gradients: how long parts of that take",
    "step_share": "Likewise, as a share of the step",
}

REQUEST_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Instruments:
    """One registry a process."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        ProcessCollector(namespace="concertina", registry=registry)
        self._requests = Counter(
            "concertina_http_requests_total", "Requests answered.", ["method", "route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "concertina_http_request_duration_seconds",
            "Time to the answer's first byte.",
            ["method", "route"],
            buckets=REQUEST_BUCKETS_S,
            registry=registry,
        )
        self._submit = Histogram(
            "concertina_submit_duration_seconds",
            "Time to store a submitted job.",
            buckets=REQUEST_BUCKETS_S,
            registry=registry,
        )
        self._gauges = {name: Gauge(f"concertina_{name}", text, registry=registry) for name, text in _GAUGES.items()}
        self._jobs = Gauge("concertina_jobs", "Jobs by state.", ["state"], registry=registry)
        self._timeline = Gauge(
            "concertina_timeline_entries", "Timeline entries of stored jobs by kind.", ["kind"], registry=registry
        )
        self._exchange = [
            Gauge(
                f"concertina_exchange_{name}",
                f"{text}, mean over workers; NaN where none.",
                ["part"],
                registry=registry,
            )
            for name, text in _EXCHANGE_GAUGES.items()
        ]
        Gauge("concertina_build_info", "1, with the version.", ["version"], registry=registry).labels(
            service_version()
        ).set(1)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answer; ``route`` is the path's template, so that its values are few."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def submitted(self, seconds: float) -> None:
        """Count a stored submission."""
        self._submit.observe(seconds)

    def render(self, totals: Totals, gauges: Mapping[str, float]) -> bytes:
        """The exposition text with fresh totals; ``gauges`` are further values by name."""
        for state in JobState:
            self._jobs.labels(state).set(totals.jobs.get(state, 0))
        for kind, number in totals.timeline.items():
            self._timeline.labels(kind).set(number)
        for name, value in {
            "workers": totals.num_current,
            "workers_desired": totals.num_desired,
            "worker_seconds": totals.worker_s,
            "samples": totals.samples,
            "wire_bytes_per_second": totals.exchange.bytes_per_s,
            "wire_ratio": totals.exchange.ratio,
            **gauges,
        }.items():
            self._gauges[name].set(value)
        for gauge, parts in zip(self._exchange, (totals.exchange.seconds, totals.exchange.shares), strict=True):
            for part, value in parts.items():
                gauge.labels(part).set(value)
        return generate_latest(self._registry)
