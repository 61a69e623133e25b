"""Schemathesis over the service's own OpenAPI document, against its real API in a process of its own.

The event stream is left out: it has no end, and its own tests. Operating on jobs needs no cluster: they queue.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx2

from service.folders import token_file
from service.settings import Settings, environment
from service.sweep_records import ENDED_SWEEPS
from tests.faults.evidence import gather
from tests.faults.processes import Installation
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
SETTLE_S = 90.0
PHASES = "examples,coverage,fuzzing,stateful"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "positive_data_acceptance",
    "unsupported_method",
    "use_after_free",
    "ignored_auth",
)
REQUEST_S = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuzzed:
    """What one run brought: answers by status, and, where not all was fine, what schemathesis tells of it.

    ``phases`` are its cases by phase. ``walked`` are the calls of the stateful one that a link led to with what an
    answer before had told, and that did what they are for. ``deleted`` are the jobs that it asked to be deleted.
    """

    num_cases: int
    phases: Mapping[str, int]
    walked: Mapping[str, int]
    statuses: Mapping[str, int]
    deleted: frozenset[str]
    is_fine: bool
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much of it: ``max_examples`` a call and phase, at most ``limit_s`` seconds in all."""

    seed: int
    max_examples: int
    limit_s: float


def fuzz(settings: Settings, report: Path, effort: Effort, *, has_token: bool = True) -> Fuzzed:
    """One run; ``report`` takes its events. Without a token only calls that need one are made."""
    with Installation(settings) as installation:
        token = token_file(settings.home)
        wait_for("the API's token", token.exists, SETTLE_S)
        secret = token.read_text().strip()
        document = report.with_name("openapi.json")
        headers = {"Authorization": f"Bearer {secret}"}
        answer = httpx2.get(f"{installation.url}/openapi.json", headers=headers, timeout=REQUEST_S)
        document.write_text(answer.raise_for_status().text)
        own = (
            ("--header", f"Authorization: Bearer {secret}", "--phases", PHASES, "--checks", ",".join(CHECKS))
            if has_token
            else ("--exclude-path-regex", "^/(livez|readyz)$", "--phases", "coverage,fuzzing", "--checks", CHECKS[0])
        )
        done = subprocess.run(
            [
                *(
                    str(SCHEMATHESIS),
                    "--config-file",
                    str(CONFIGURATION),
                    "run",
                    str(document),
                    "--url",
                    installation.url,
                    *own,
                ),
                *("--exclude-path", "/api/v1/stream", "--request-timeout", str(REQUEST_S)),
                *("--seed", str(effort.seed), "--max-examples", str(effort.max_examples)),
                *("--continue-on-failure", "--no-shrink", "--suppress-health-check", "all"),
                *("--report", "ndjson", "--report-ndjson-path", str(report)),
            ],
            env=environment() | {"SCHEMATHESIS_HOOKS": "tests.faults.fuzz_hooks", "PYTHONPATH": str(ROOT)},
            cwd=report.parent,
            capture_output=True,
            text=True,
            timeout=effort.limit_s,
            check=False,
        )

        def has_settled() -> bool:
            # A stage that loads torch for a sampler answers nobody meanwhile, and who waits for it in vain leaves.
            installation.tend()
            return not num_open(settings)

        wait_for("the trials of ended sweeps or deleted jobs to end", has_settled, SETTLE_S, told=installation.told)
    return read_report(report, done.returncode, done.stdout + done.stderr)


def num_open(settings: Settings) -> int:
    """How many trials have yet to be told that their sweep is over, or their job gone: by one of the last calls."""
    evidence = gather(settings)
    return sum(
        part.is_open and (sweep.state in ENDED_SWEEPS or part.job_id not in evidence.jobs)
        for sweep in evidence.sweeps.values()
        for part in (*sweep.trials, *sweep.runs)
    )


def read_report(report: Path, exit_code: int, output: str) -> Fuzzed:
    """Count the answers of a run, and cut what went wrong out of its output."""
    statuses: Counter[str] = Counter()
    phases: Counter[str] = Counter()
    walked: Counter[str] = Counter()
    deleted: set[str] = set()
    for line in report.read_text().splitlines():
        scenario = json.loads(line).get("ScenarioFinished", {})
        recorder = scenario.get("recorder", {})
        for case_id, interaction in recorder.get("interactions", {}).items():
            status, request = str((interaction["response"] or {}).get("status_code")), interaction["request"]
            statuses[status] += 1
            phases[scenario["phase"]] += 1
            case = recorder["cases"][case_id]
            if case.get("is_transition_applied") and status.startswith("2"):
                walked[f"{case['value']['method']} {case['value']['path'].removeprefix('/api/v1')}"] += 1
            if request["method"] == "DELETE" and "/jobs/" in request["uri"]:
                deleted.add(request["uri"].rpartition("/")[2].partition("?")[0])
    is_fine = exit_code == 0
    told = "" if is_fine else output[max(0, output.find("= ERRORS =")) or max(0, output.find("= FAILURES =")) :]
    return Fuzzed(
        num_cases=statuses.total(),
        phases=dict(phases),
        walked=dict(walked),
        statuses=dict(statuses),
        deleted=frozenset(deleted),
        is_fine=is_fine,
        told=told,
    )
