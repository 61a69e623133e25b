"""One job as its page shows it: header, facts, legal actions, charts, timeline, size. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from service import timeline_words, words
from service.documents import Document
from service.ids import SWEEP_ID
from service.pages.jobs import eval_values, fraction, main_metric
from service.pages.render import moment
from service.states import ENDED_STATES, JobState, Move, Verb, command

TABS: Mapping[str, str] = {
    "overview": "Overview",
    "logs": "Logs",
    "metrics": "Metrics",
    "batch": "Batch",
    "system": "System",
    "events": "Events",
    "attempts": "Attempts",
    "checkpoints": "Checkpoints",
    "files": "Files",
    "spec": "Spec",
    "report": "Report",
}
NUM_NEWEST = 5


def summary_view(job: Document) -> dict[str, Any]:
    """State, progress and facts."""
    return {
        "job": job,
        "fraction": fraction(job),
        "ran_s": _ran_s(job),
        "reason_sentence": words.reason(job["reason"]),
        "facts": _facts(job),
        "trial": _trial(job),
    }


def _trial(job: Document) -> dict[str, str] | None:
    """Which trial of which sweep it is, by the labels that its sweep gave it; a person may write such labels too."""
    labels = job["spec"].get("labels") or {}
    sweep_id, number = labels.get("sweep", ""), labels.get("trial", "")
    return {"sweep_id": sweep_id, "number": number} if SWEEP_ID.fullmatch(sweep_id) and number.isdecimal() else None


def is_of_sweep(job: Document) -> bool:
    """Whether a sweep says what becomes of it: as a trial, or in the promotion of its winner."""
    labels = job["spec"].get("labels") or {}
    return any(SWEEP_ID.fullmatch(labels.get(key, "")) for key in ("sweep", "promotion"))


def _ran_s(job: Document) -> float | None:
    if not job["started_at"] or not job["finished_at"]:
        return None
    return (moment(job["finished_at"]) - moment(job["started_at"])).total_seconds()


def _facts(job: Document) -> list[tuple[str, str, str]]:
    progress, workers = job["progress"], job["workers"]
    rows = [("Loss", words.number(progress.get("loss")), "")]
    scores = sorted(eval_values(job).items())
    rows += [(_score_word(name), words.metric_value(f"eval.{name}", value), "") for name, value in scores[:2]]
    if job["state"] not in ENDED_STATES:
        rows.append(("Throughput", words.rate(progress.get("samples_per_s")), ""))
        wanted = workers.get("desired")
        note = f"({wanted} wanted)" if wanted and wanted != workers["current"] else ""
        rows.append(("Workers", words.workers(workers), note))
    rows.append(("Samples", words.number(progress.get("samples")), ""))
    rows.append(("Cost", words.cost(job["cost"]), ""))
    return rows


def _score_word(name: str) -> str:
    text = name.replace("_", " ")
    return "Evaluation loss" if name == "loss" else text[:1].upper() + text[1:]


def actions_view(job: Document) -> list[dict[str, str]]:
    """The commands that are legal now, in the order of their buttons."""
    state, attempt = JobState(job["state"]), int(job["attempt"] or 0)
    legal = {verb for verb in Verb if isinstance(command(verb, state, attempt), Move)}
    found = []
    if Verb.RESUME in legal:
        found.append(_action("resume", "Resume", "first"))
    if Verb.RETRY in legal and not is_of_sweep(job):
        found.append(_action("retry", "Retry from the last checkpoint", "first"))
        found.append(_action("retry", "Retry from the start", "", origin="start"))
    if Verb.PAUSE in legal:
        found.append(_action("pause", "Pause" if state is JobState.QUEUED else "Pause with checkpoint", ""))
    if Verb.CANCEL in legal:
        found.append(_action("cancel", "Cancel", "danger"))
    if state in ENDED_STATES:
        found.append(_action("delete", "Delete", "danger"))
    return [{**action, **question(action["verb"], action["origin"], job["name"])} for action in found]


def _action(verb: str, word: str, style: str, origin: str = "") -> dict[str, str]:
    return {"verb": verb, "word": word, "style": style, "origin": origin}


def question(verb: str, origin: str, name: str) -> dict[str, str]:
    """What a dangerous action asks: ``ask``, what is ``lost``, and what the button that does it says; else empty."""
    if verb == "cancel":
        return {
            "ask": f"Cancel {name}?",
            "do": "Cancel the job",
            "lost": "Its training stops now. What it did since its last checkpoint is lost; "
            "checkpoints, metrics and logs stay.",
        }
    if verb == "delete":
        return {
            "ask": f"Delete {name}?",
            "do": "Delete it",
            "lost": "Its checkpoints, files, metrics and logs are removed for good.",
        }
    if verb == "retry" and origin == "start":
        return {
            "ask": f"Start {name} anew?",
            "do": "Start anew",
            "lost": "Its checkpoints are not gone on from: all its training is done again.",
        }
    return {"ask": "", "do": "", "lost": ""}


def timeline_view(rows: Sequence[Document]) -> list[dict[str, Any]]:
    """Rows with their sentences, the newest first; ``is_told`` marks those that are shown at once.

    Those are the newest ones, without the checkpoints that another row has followed.
    """
    newest = list(reversed(rows))
    told = [row for i, row in enumerate(newest) if row["kind"] != "checkpoint" or i == 0][:NUM_NEWEST]
    shown = {row["seq"] for row in told}
    return [
        {
            **{k: row[k] for k in ("seq", "step", "time", "kind")},
            "sentence": timeline_words.sentence(row),
            "note": _note(row),
            "is_told": row["seq"] in shown,
        }
        for row in newest
    ]


def _note(row: Document) -> str:
    why = str(row.get("reason") or "").partition("; went on with")[0]
    is_told = not why or why.rstrip(".").casefold() in timeline_words.sentence(row).casefold()
    by = str(row.get("actor") or "")
    return "" if is_told else why if by in ("", "controller", "service") else f"{by}: {why}"


def chart_view(job: Document, keys: Sequence[str], axis: str) -> dict[str, Any]:
    """Which telemetry the overview's charts show."""
    main = main_metric(job)
    losses = ["loss", *(k for k in keys if k == "eval.loss")]
    score = (
        main
        if main not in losses
        else next((k for k in sorted(keys) if k.startswith("eval.") and k != "eval.loss"), "")
    )
    return {
        "shown": [*losses, *([score] if score else []), "samples_per_s", "workers"],
        "loss": losses,
        "score": score,
        "axis": axis,
        "with_axis": lambda name: address(job["id"], "overview", x=name if name != "step" else ""),
    }


def address(job_id: str, tab: str, **query: str) -> str:
    """A link to a tab of a job's page; empty values are left out."""
    pairs = {"tab": "" if tab == "overview" else tab, **query}
    text = urlencode({k: v for k, v in pairs.items() if v})
    return f"/jobs/{job_id}?{text}" if text else f"/jobs/{job_id}"


def size_view(job: Document, timeline: Sequence[Document]) -> dict[str, Any] | None:
    """The scale control; None where a size makes no sense any more."""
    if job["state"] in ENDED_STATES or job["state"] == JobState.CANCELLING:
        return None
    workers = job["workers"]
    current, wanted = int(workers["current"] or 0), int(workers["desired"] or 0)
    pinned = (job.get("observed") or {}).get("pinned")
    asked = pinned or wanted or current or workers["min"]
    headline, detail = _size_words(job, current, int(pinned or wanted), timeline)
    return {
        "is_elastic": workers["min"] < workers["max"],
        "is_pinned": pinned is not None,
        "asked": max(workers["min"], min(workers["max"], asked)),
        "headline": headline,
        "detail": detail,
    }


def _size_words(job: Document, current: int, wanted: int, timeline: Sequence[Document]) -> tuple[str, str]:
    state = job["state"]
    if state in ("QUEUED", "PAUSED", "PAUSING"):
        told = f"{words.plural(wanted, 'worker')} asked for" if wanted else "No worker now"
        return told, "The size takes effect when the job runs."
    if wanted and current and wanted != current:
        return (
            f"From {current} to {words.plural(wanted, 'worker')}",
            _pending_words(job, current, wanted),
        )
    if not current:
        return "No worker trains now", f"{words.plural(wanted, 'worker')} wanted." if wanted else ""
    last = next((row for row in reversed(timeline) if row["kind"] in _SIZE_KINDS), None)
    verb = "train" if current != 1 else "trains"
    return f"{words.plural(current, 'worker')} {verb}", _effect(last) if last else ""


_SIZE_KINDS = frozenset({"resize", "worker_lost", "worker_joined"})


def _effect(row: Document) -> str:
    lost, cost_s = row.get("steps_lost"), row.get("cost_s")
    told = [f"since step {words.count(row['step'])}"]
    told += [f"changed in {words.duration(cost_s)}"] if cost_s is not None else []
    told += [f"{words.plural(int(lost), 'step')} lost"] if lost is not None else []
    return f"{', '.join(told).capitalize()}."


def _pending_words(job: Document, current: int, wanted: int) -> str:
    pending = int((job.get("observed") or {}).get("num_pending") or 0)
    if wanted > current and pending:
        return f"{words.plural(pending, 'worker')} on the way, or waiting for room; training goes on meanwhile."
    if wanted > current:
        return "The newcomers are being started; training goes on meanwhile."
    return "The plan is being agreed; it takes effect at a step boundary."
