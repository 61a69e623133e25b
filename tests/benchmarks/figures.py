"""Figures of a measurement: order statistics, one line a comparison, results as JSON lines."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Order statistics of one quantity."""

    n: int
    least: float
    p25: float
    p50: float
    p75: float
    p95: float
    p99: float
    most: float


def percentile(values: Sequence[float], fraction: float) -> float:
    """The smallest value that at least ``fraction`` of them do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(fraction * len(values)) - 1)]


def spread(values: Sequence[float]) -> Spread:
    """The order statistics of at least one value."""
    return Spread(
        n=len(values),
        least=min(values),
        p25=percentile(values, 0.25),
        p50=statistics.median(values),
        p75=percentile(values, 0.75),
        p95=percentile(values, 0.95),
        p99=percentile(values, 0.99),
        most=max(values),
    )


def in_words(values: Sequence[float], unit: str, scale: float = 1.0) -> str:
    """``p50 0.18 s, quartiles 0.16 to 0.21, p99 0.31, 0.12 to 0.31 (n=10)``; says so where there is nothing."""
    if not values:
        return "not measured"
    s = spread([value * scale for value in values])
    return (
        f"p50 {s.p50:.3g} {unit}, quartiles {s.p25:.3g} to {s.p75:.3g}, p99 {s.p99:.3g}, "
        f"{s.least:.3g} to {s.most:.3g} (n={s.n})"
    )


def ratio_line(what: str, ours: Sequence[float], theirs: Sequence[float], wanted: float) -> str:
    """How many times smaller our median is than theirs, and whether that is what was asked for."""
    if not ours or not theirs:
        return f"{what}: one side was not measured"
    times = statistics.median(theirs) / statistics.median(ours)
    worst = min(theirs) / max(ours)
    return f"{what}: {times:.1f} times (their best over our worst: {worst:.1f}); wanted: {wanted:g}"


def own_version() -> str:
    """The version of this source tree."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return str(document["project"]["version"])


def versions(*names: str) -> dict[str, str]:
    """Versions of installed packages of this environment; what is not installed is left out."""
    found = {"concertina": own_version(), "python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def code_digest() -> str:
    """Names the code of the service and its workers, so that counts of another are not added to its own."""
    digest = hashlib.sha256()
    for file in sorted(file for part in ("service", "workers", "tuning") for file in (ROOT / part).rglob("*.py")):
        digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def circumstances() -> dict[str, object]:
    """What the figures depend on besides the code."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpus": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "system": platform.platform(terse=True),
        "gpus": _gpus(),
    }


def _gpus() -> list[str]:
    """The models of this machine's, as NVIDIA's driver tells them."""
    told = [path.read_text() for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))]
    lines = [line for text in told for line in text.splitlines()]
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]


def append_result(file: Path | None, kind: str, values: Mapping[str, object]) -> None:
    """Add one JSON line to a file of results, if there is one."""
    if file is not None:
        with file.open("a") as stream:
            stream.write(json.dumps({"kind": kind, **values}) + "\n")


def spread_document(values: Sequence[float]) -> dict[str, object] | None:
    """A spread as plain values, None where nothing was measured."""
    return asdict(spread(values)) if values else None
