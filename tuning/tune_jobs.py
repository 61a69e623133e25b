"""Which job a trial of Ray Tune is, and how far it has come. Pure."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuning.paths import Document, applied, path_fault
from workers.errors import FieldProblem, SpecError

MAX_NAME_CHARS = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a trial has come, as its Tune checkpoint keeps it.

    ``samples`` is how far Tune was told. The job's step ``base_step`` was its sample ``base_samples``: not 0 where it
    began from the ``checkpoint`` (a step) of another. ``digest`` is of the spec without that beginning.
    """

    trial_id: str
    digest: str
    job_id: str
    global_size: int
    samples: int = 0
    base_step: int = 0
    base_samples: int = 0
    checkpoint: int | None = None

    def samples_at(self, step: int) -> int:
        """How many samples the job had seen at a step."""
        return self.base_samples + (step - self.base_step) * self.global_size

    def next_step(self) -> int:
        """The first step whose report Tune has not had."""
        return self.base_step + math.ceil((self.samples - self.base_samples) / self.global_size) + 1

    def is_last(self, step: int, num_steps: int | None) -> bool:
        """Whether a job of so many steps in all is about to end that reports this one."""
        return num_steps is not None and self.samples_at(step) > (num_steps - 1) * self.global_size


def trial_job(job: Mapping[str, Any], config: Mapping[str, Any], trial_id: str) -> Document:
    """The spec of a trial's job. Raises SpecError for a config whose keys are no paths of a job spec, or no values."""
    faults = [FieldProblem(f"/param_space/{path}", fault) for path in config if (fault := path_fault(str(path)))]
    if faults:
        raise SpecError(faults)
    try:
        values = json.loads(json.dumps(dict(config), default=_plain))
        spec = applied(job, values)
    except TypeError as error:
        raise SpecError([FieldProblem("/param_space", f"{error}; a job's spec holds plain values only")]) from None
    except KeyError as error:
        detail = f"{error.args[0]} leads through a value of the job that is no mapping; write that as a mapping"
        raise SpecError([FieldProblem("/param_space", detail)]) from None
    ending = "-" + re.sub(r"[^a-z0-9]+", "-", trial_id.lower()).strip("-")
    return {**spec, "name": str(spec.get("name", "tune"))[: MAX_NAME_CHARS - len(ending)] + ending}


def digest_of(value: object) -> str:
    """A short name for a plain value, the same in every process."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plain(value: object) -> object:
    """The number inside of one of NumPy's, which Tune's samplers give."""
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"{value!r:.80} is no value of JSON")
    return item()
