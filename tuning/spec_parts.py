"""The parts of a sweep spec as they are written, each with the types that it accepts."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer

from tuning.values import Scalar
from tuning.written_values import (
    MAX_CHARACTERS,
    MAX_CHOICES,
    bound,
    condition,
    option,
    options,
    step,
    two_bounds,
    whole_bound,
)
from workers.spec_parts import MAX_SAMPLES, WHOLE, Positive, SpecPart

MAX_TRIALS = 10_000
MAX_PARALLEL = 1024
MAX_WARM_STARTS = 20

_Number: TypeAlias = Annotated[float, BeforeValidator(bound)]
_Step: TypeAlias = Annotated[float, BeforeValidator(step)]
_Bounds: TypeAlias = Annotated[list[_Number], Field(min_length=2, max_length=2), BeforeValidator(two_bounds)]
_Whole: TypeAlias = Annotated[int, Field(ge=-MAX_SAMPLES, le=MAX_SAMPLES), BeforeValidator(whole_bound)]
_WholeBounds: TypeAlias = Annotated[list[_Whole], Field(min_length=2, max_length=2), BeforeValidator(two_bounds)]
_Text: TypeAlias = Annotated[str, Field(max_length=MAX_CHARACTERS)]
_Option: TypeAlias = Annotated[bool | int | float | _Text | None, BeforeValidator(option)]
_Options: TypeAlias = Annotated[list[_Option], Field(min_length=1, max_length=MAX_CHOICES), BeforeValidator(options)]
_Condition: TypeAlias = Annotated[Scalar, BeforeValidator(condition)]


class _Brief(SpecPart):
    """Written back as short as it was given: what is not set is left out."""

    @model_serializer(mode="wrap")
    def _without_what_is_not_set(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None and value != {}}


class DistributionSpec(_Brief):
    """Where one parameter may lie: exactly one of ``uniform``, ``log_uniform``, ``int`` and ``choice``.

    ``step`` goes with ``uniform`` and ``int``, ``log`` with ``int``. ``when`` names other parameters of the
    space, or values of the job, and what each must be for this one to be searched at all.
    """

    uniform: _Bounds | None = None
    log_uniform: _Bounds | None = None
    int: _WholeBounds | None = None
    choice: _Options | None = None
    step: _Step | None = None
    log: bool | None = None
    when: Annotated[dict[str, _Condition], Field(default_factory=dict)]


class AshaSpec(SpecPart):
    """Asynchronous successive halving (Li et al. 2018, arXiv 1810.05934).

    The first rung is at ``min_samples`` (null: the job's samples over ``reduction`` cubed), each further one at
    ``reduction`` times as many; about one trial in ``reduction`` goes on. With ``promote`` the others wait at
    the rung, and go on once enough worse ones have come; without, they are stopped for good.
    """

    min_samples: Positive | None = None
    reduction: Annotated[int, Field(ge=2, le=100), WHOLE] = 3
    promote: bool = True


class HyperbandSpec(SpecPart):
    """Several stopping ASHA side by side that differ in their first rung (Li et al. 2016, arXiv 1603.06560)."""

    min_samples: Positive | None = None
    reduction: Annotated[int, Field(ge=2, le=100), WHOLE] = 3


class MedianSpec(SpecPart):
    """Stop what is worse than the median of at least ``min_trials`` others at the same number of samples.

    Nothing is stopped before ``min_samples`` (null: a ninth of the job's samples).
    """

    min_samples: Positive | None = None
    min_trials: Annotated[int, Field(ge=1, le=MAX_TRIALS), WHOLE] = 5


class PrunerSpec(_Brief):
    """Exactly one of them."""

    asha: AshaSpec | None = None
    hyperband: HyperbandSpec | None = None
    median: MedianSpec | None = None


class SweepLimits(SpecPart):
    """When a sweep ends before its trials do: seconds since its start, money, finished trials without a better one."""

    time_s: Annotated[float, Field(gt=0)] | None = None
    cost: Annotated[float, Field(gt=0)] | None = None
    trials_without_improvement: Annotated[int, Field(ge=1, le=MAX_TRIALS), WHOLE] | None = None


SamplerName: TypeAlias = Literal["tpe", "gp", "cmaes", "random", "grid"]
PrunerName: TypeAlias = Literal["asha", "hyperband", "median", "none"]
PopulationName: TypeAlias = Literal["pbt", "pb2"]
Mode: TypeAlias = Literal["max", "min"]
