"""The parts of a job spec, each with what it refuses by itself."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from workers.lr import Decay, LrRule

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
ENTRYPOINT_PATTERN = r"^[A-Za-z_][\w]*(\.[A-Za-z_][\w]*)*:[A-Za-z_][\w]*$"
ENV_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"

OWN_PREFIXES = ("CONCERTINA_", "RAY_")
"""Variables of the service and of Ray begin so (the database's password, say): they are nobody's secrets."""

MAX_SAMPLES = 2**53

LEAST_PART = 0.01
"""Of a GPU."""

LEAST_CPUS = 1e-4
"""Ray starts nothing that asks for less."""

EPSILON = 1e-6


def whole_number(value: object) -> object:
    """JSON writes one and the same number as 5 and as 5.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def requirement(text: str) -> str:
    """A PEP 508 requirement as it is given. Raises ValueError for anything else."""
    try:
        Requirement(text)
    except InvalidRequirement as error:
        told = str(error).splitlines()[0]
        raise ValueError(f"is not a PEP 508 requirement ({told}); write for example 'einops>=0.8'") from None
    return text


def _gpus(num: float) -> float:
    if 0 < num < LEAST_PART:
        raise ValueError(f"must be 0, or {LEAST_PART:g} at least: less of a GPU holds no worker")
    return num


def _secret_name(text: str) -> str:
    if text.startswith(OWN_PREFIXES):
        raise ValueError(f"{text:.80} is a variable of the service's own; put the value under another name")
    return text


def variable_value(text: str) -> str:
    """What a variable can hold, as it is given. Raises ValueError for anything else."""
    if "\0" in text:
        raise ValueError("holds a zero character, which no variable can; leave it out")
    return text


WHOLE = BeforeValidator(whole_number)
Positive: TypeAlias = Annotated[int, Field(gt=0, le=MAX_SAMPLES), WHOLE]


SchemeName: TypeAlias = Literal[
    "auto", "none", "bf16", "fp16", "int8", "int4", "two_four", "topk", "powersgd", "local_steps"
]


class SpecPart(BaseModel):
    """Root of them all."""

    # Strict: "5" is a text and no number, 1 is no truth value. What reads YAML makes numbers of what looks like one.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class Secret(SpecPart):
    """A value that comes from the service's environment and is shown nowhere."""

    secret: Annotated[str, Field(pattern=ENV_PATTERN), AfterValidator(_secret_name)]


class InitFrom(SpecPart):
    """Start from a checkpoint of another job: its weights, or all of its state.

    Of a job that has ended ``step`` must be there when this one is submitted, of a living one when this one starts.
    """

    job: Annotated[str, Field(min_length=1)]
    step: Literal["latest"] | Annotated[int, Field(ge=0), WHOLE] = "latest"
    state: Literal["weights", "all"] = "weights"


class WorkerRange(SpecPart):
    """The elastic range of worker counts."""

    min: Annotated[int, Field(ge=1, le=1024), WHOLE] = 1
    max: Annotated[int, Field(ge=1, le=1024), WHOLE] = 1

    @model_validator(mode="after")
    def _ordered(self) -> WorkerRange:
        if self.min > self.max:
            raise ValueError(f"min={self.min} is above max={self.max}; lower min or raise max")
        return self


class Resources(SpecPart):
    """What one worker gets; ``memory_bytes`` is a limit, on CPU too.

    On a node that has no GPUs at all it gets ``cpus_instead`` and no GPU, or sits on none such where that is null. What
    such a worker is told of itself has no ``gpus`` and keeps ``cpus_instead``: others of its job may have a GPU.
    """

    cpus: Annotated[float, Field(gt=0, le=4096)] = 1
    gpus: Annotated[float, Field(ge=0, le=64), AfterValidator(_gpus)] = 0
    cpus_instead: Annotated[float, Field(gt=0, le=4096)] | None = None
    memory_bytes: Annotated[int, Field(ge=64 * 2**20), WHOLE] | None = None

    @property
    def are_cpus_alone(self) -> bool:
        """Whether no worker of the job has a GPU."""
        return self.gpus == 0 and self.cpus_instead is None

    @property
    def gpus_taken(self) -> float:
        """What a worker takes of its node's GPUs.

        A part is rounded up to what holds as many of its size on one GPU: what one has left over no worker spans.
        """
        return 1 / int(1 / self.gpus + EPSILON) if 0 < self.gpus < 1 else self.gpus

    def without_gpu(self) -> Resources:
        """What a worker gets on a node without GPUs."""
        assert self.cpus_instead is not None, "it sits on nodes with GPUs only"
        return self.model_copy(update={"cpus": self.cpus_instead, "gpus": 0.0})


UNBOUNDED = 32
"""Without ``batch.max_global_size`` a batch grows to so many times ``batch.global_size`` at most."""


class BatchSpec(SpecPart):
    """The global batch, in samples an optimizer step whatever the number of workers.

    A forward pass has ``micro_size`` samples, or samples that take up ``max_tokens`` tokens, when padded to the longest
    or, where the task packs them, end to end.
    """

    global_size: Positive = 128
    micro_size: Literal["auto"] | Positive = "auto"
    max_tokens: Positive | None = None
    adapt: Literal["fixed", "goodput"] = "fixed"
    max_global_size: Positive | None = None
    lr_rule: Annotated[LrRule, Field(strict=False)] = LrRule.SQRT

    @property
    def noise_follower(self) -> str | None:
        """What goes by the gradient noise scale, in a word; None where nothing does."""
        if self.adapt == "goodput":
            return self.adapt
        return self.lr_rule.value if self.lr_rule is LrRule.ADASCALE else None


class OptimizerSpec(SpecPart):
    """``lr`` is meant at ``base_batch`` samples."""

    lr: Annotated[float, Field(gt=0)] = 1.0e-3
    base_batch: Positive = 128
    clip_norm: Annotated[float, Field(gt=0)] | None = None


class LrScheduleSpec(SpecPart):
    """Warm-up and decay, driven by the share of samples seen."""

    warmup_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.05
    decay: Annotated[Decay, Field(strict=False)] = Decay.COSINE


class ParallelismSpec(SpecPart):
    """How the model and its state are spread over workers."""

    data: Literal["auto"] | Positive = "auto"
    tensor: Positive = 1
    pipeline: Positive = 1
    shard: bool = False
    activation_checkpointing: bool = False


class CheckpointSpec(SpecPart):
    """``every_steps`` at ``batch.global_size``; ``metric`` is a telemetry key such as ``eval.accuracy``."""

    every_steps: Positive = 100
    keep: Annotated[int, Field(ge=1, le=1000), WHOLE] = 2
    metric: str | None = None
    mode: Literal["max", "min"] = "max"


class RetrySpec(SpecPart):
    """How often the user's code may fail before the job does; lost workers and nodes are not counted.

    A failure counts until the job is 100 steps further than it had been by then.
    """

    max_failures: Annotated[int, Field(ge=0, le=1000), WHOLE] = 3
