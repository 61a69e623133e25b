"""The list of jobs as a page shows it: filters, rows, sparklines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from urllib.parse import urlencode

from service import words
from service.documents import Document
from service.jobs import ListQuery
from service.states import ENDED_STATES, JobState

SPARK_WIDTH, SPARK_HEIGHT, NUM_SPARK_POINTS = 80, 24, 40
_MAX_WHY_CHARS = 60
BULK_LOST = (
    "Their training stops now. What they did since their last checkpoints is lost; checkpoints, metrics and logs stay."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What of the list is asked for, as it stands in the address: ``label`` is ``key=value``, several of them."""

    state: str = ""
    q: str = ""
    labels: tuple[str, ...] = ()
    page_token: str = ""

    @property
    def url(self) -> str:
        """The address of this very list."""
        pairs = [("state", self.state), ("q", self.q), *(("label", text) for text in self.labels)]
        query = urlencode([(k, v) for k, v in [*pairs, ("page_token", self.page_token)] if v])
        return f"/jobs?{query}" if query else "/jobs"

    def with_state(self, state: str) -> str:
        """The address of the same list with another state, from its beginning."""
        return replace(self, state=state, page_token="").url

    def with_label(self, key: str, value: str) -> str:
        """The address of the list that also asks for this label."""
        text = f"{key}={value}"
        return replace(self, labels=tuple(dict.fromkeys((*self.labels, text))), page_token="").url

    @property
    def is_narrow(self) -> bool:
        """Whether it may leave jobs out."""
        return bool(self.state or self.q or self.labels or self.page_token)

    def query(self) -> ListQuery:
        """What to ask the use case; a ``key=value`` typed into the search field is a label too."""
        typed = self.q.split()
        return ListQuery(
            states=(self.state,) if self.state else (),
            labels=(*self.labels, *(text for text in typed if "=" in text.strip("="))),
            search=" ".join(text for text in typed if "=" not in text) or None,
            page_token=self.page_token or None,
        )


Listed: TypeAlias = tuple[Sequence[Document], str | None]
"""A page of jobs and the token of the next."""


def list_view(
    filters: Filters, listed: Listed, counts: Mapping[JobState, int], series: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """The context of the list; ``series`` holds the main metric's newest values by job id."""
    jobs, token = listed
    return {
        "bulk_lost": BULK_LOST,
        "filters": filters,
        "total": sum(counts.values()),
        "counts": [(name, counts[name]) for name in JobState if counts.get(name)],
        "jobs": [_row(job, series.get(job["id"], ())) for job in jobs],
        "older": replace(filters, page_token=token).url if token else None,
        "newer": replace(filters, page_token="").url if filters.page_token else None,
    }


def main_metric(job: Document) -> str:
    """The telemetry key that tells best how a job does: what chooses its checkpoints, an accuracy, or the loss."""
    chosen: str | None = job["spec"].get("checkpoint", {}).get("metric")
    evaluated = eval_values(job)
    if chosen and (chosen == "loss" or chosen.removeprefix("eval.") in evaluated):
        return chosen
    return next((f"eval.{name}" for name in sorted(evaluated) if "acc" in name), "loss")


def eval_values(job: Document) -> Mapping[str, float]:
    """The newest evaluation by name, without the prefix of its telemetry keys."""
    values = job["progress"].get("eval") or {}
    return {key.removeprefix("eval."): value for key, value in values.items()}


def metric_now(job: Document, key: str) -> float | None:
    """The newest value of a job's main metric."""
    if key == "loss":
        loss: float | None = job["progress"].get("loss")
        return loss
    return eval_values(job).get(key.removeprefix("eval."))


def fraction(job: Document) -> float | None:
    """How much of the job is done, None while its length is unknown."""
    progress = job["progress"]
    if job["state"] == "SUCCEEDED":
        return 1.0
    if not progress.get("steps"):
        return None
    return min(1.0, float(progress.get("step") or 0) / float(progress["steps"]))


def spark_points(values: Sequence[float]) -> str:
    """Values as the points of an SVG polyline in a box of 80 × 24; empty for fewer than two."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    step = SPARK_WIDTH / (len(values) - 1)
    room = SPARK_HEIGHT - 2
    return " ".join(f"{i * step:.1f},{1 + room - (v - low) / span * room:.1f}" for i, v in enumerate(values))


def _row(job: Document, values: Sequence[float]) -> dict[str, Any]:
    key = main_metric(job)
    now = metric_now(job, key)
    metric = None
    if now is not None:
        name = "loss" if key == "loss" else key.removeprefix("eval.").removeprefix("user.")
        metric = {"name": name, "value": words.metric_value(key, now), "points": spark_points(values)}
    is_running = job["state"] == "RUNNING"
    return {
        **{k: job[k] for k in ("id", "name", "state", "workers", "cost", "started_at")},
        "labels": sorted((job["spec"].get("labels") or {}).items()),
        "is_over": job["state"] in ENDED_STATES,
        "why": words.reason(job["reason"])[:_MAX_WHY_CHARS],
        "fraction": fraction(job),
        "eta_s": job["progress"].get("eta_s") if is_running else None,
        "metric": metric,
        "samples_per_s": job["progress"].get("samples_per_s") if is_running else None,
    }
