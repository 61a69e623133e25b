"""Many cases of schemathesis against the service's API: ``python -m tests.benchmarks.fuzz --cases 20000``.

Runs in portions with a seed each; each appends a line to ``--output``, and a later call goes on after the
last seed there until the file counts ``--cases`` of this code and kind of database in all. Ends with 1 where anything
was found.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from service.migrations.upgrade import upgrade
from service.settings import load_settings
from tests.benchmarks.command import add_database
from tests.benchmarks.figures import append_result, circumstances, code_digest, versions
from tests.faults.fuzzing import Effort, Fuzzed, fuzz
from tests.service.postgres import running_server

KIND = "fuzz"
MAX_EXAMPLES = 60
PORTION_LIMIT_S = 600.0


def portion(seed: int, database: str) -> Fuzzed:
    """One run with a new service."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-"))
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        url = stack.enter_context(running_server()).migrated() if database == "postgres" else None
        settings = load_settings({"home": home, "poll_s": 0.05, "database": url}, {})
        upgrade(settings.database_url)
        effort = Effort(seed=seed, max_examples=MAX_EXAMPLES, limit_s=PORTION_LIMIT_S)
        return fuzz(settings, Path(folder) / "events.ndjson", effort)


def earlier(file: Path | None, about: Mapping[str, object]) -> list[dict[str, object]]:
    """The portions that a file of results holds already, of which it says the same."""
    if file is None or not file.exists():
        return []
    lines = map(json.loads, file.read_text().splitlines())
    return [line for line in lines if line["kind"] == KIND and about.items() <= line.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--output", type=Path)
    add_database(parser)
    options = parser.parse_args()
    about = {"code": code_digest(), "database": options.database}
    done = earlier(options.output, about)
    while sum(int(str(line["cases"])) for line in done) < options.cases:
        seed = 1 + max((int(str(line["seed"])) for line in done), default=0)
        found = portion(seed, options.database)
        counts = {"phases": found.phases, "walked": found.walked, "statuses": found.statuses}
        line = {"seed": seed, "cases": found.num_cases, **counts, "is_fine": found.is_fine, **about}
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
