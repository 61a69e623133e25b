"""Many cases of schemathesis against the service's API: ``python -m tests.benchmarks.fuzz --cases 20000``.

Runs in portions with a seed each; each appends a line to ``--output``, and a later call goes on after the
last seed there until the file counts ``--cases`` in all. Ends with 1 where anything was found.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from service.migrations.upgrade import upgrade
from service.settings import load_settings
from tests.benchmarks.figures import append_result, circumstances, versions
from tests.faults.fuzzing import Effort, Fuzzed, fuzz

KIND = "fuzz"
MAX_EXAMPLES = 60
PORTION_LIMIT_S = 600.0


def portion(seed: int) -> Fuzzed:
    """One run with a new service."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        settings = load_settings({"home": home, "poll_s": 0.05}, {})
        upgrade(settings.database_url)
        effort = Effort(seed=seed, max_examples=MAX_EXAMPLES, limit_s=PORTION_LIMIT_S)
        return fuzz(settings, Path(folder) / "events.ndjson", effort)


def earlier(file: Path | None) -> list[dict[str, object]]:
    """The portions that a file of results holds already."""
    if file is None or not file.exists():
        return []
    return [line for line in map(json.loads, file.read_text().splitlines()) if line["kind"] == KIND]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    done = earlier(options.output)
    while sum(int(str(line["cases"])) for line in done) < options.cases:
        seed = 1 + max((int(str(line["seed"])) for line in done), default=0)
        found = portion(seed)
        counts = {"phases": found.phases, "walked": found.walked, "statuses": found.statuses}
        line = {"seed": seed, "cases": found.num_cases, **counts, "is_fine": found.is_fine}
        append_result(options.output, KIND, line | circumstances() | {"versions": versions("schemathesis")})
        done.append(line)
        print(f"seed {seed}: {found.num_cases} cases, {found.phases}, {found.statuses}", found.told, flush=True)
    statuses: Counter[str] = Counter()
    for line in done:
        statuses.update(line["statuses"])  # type: ignore[call-overload]  # as written above
    num_5xx = sum(count for status, count in statuses.items() if status.startswith("5"))
    num_bad = sum(not line["is_fine"] for line in done)
    print(f"{statuses.total()} cases, {num_5xx} answers of 5xx, {num_bad} portions of {len(done)} with findings")
    return int(num_5xx > 0 or num_bad > 0)


if __name__ == "__main__":
    sys.exit(main())
