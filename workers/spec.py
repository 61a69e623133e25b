"""The job spec: what a user submits, with every default and every refusal.

``parse_job_spec`` is the one way in: it refuses unknown keys with a suggestion, values that are not
built yet with ``NOT_AVAILABLE``, and combinations that cannot run, all at once, each with its pointer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, Field, JsonValue, ValidationError, field_validator

from workers.errors import FieldProblem, SpecError
from workers.exchange_options import BLURRING, LOSSY, ExchangeSpec, as_written, named, option_problems
from workers.problems import Place, pointer_part, problems_of
from workers.spec_parts import (
    ENTRYPOINT_PATTERN,
    ENV_PATTERN,
    LEAST_CPUS,
    MAX_SAMPLES,
    NAME_PATTERN,
    WHOLE,
    BatchSpec,
    CheckpointSpec,
    InitFrom,
    LrScheduleSpec,
    OptimizerSpec,
    ParallelismSpec,
    Positive,
    Resources,
    RetrySpec,
    SchemeName,
    Secret,
    SpecPart,
    WorkerRange,
    requirement,
    variable_value,
    whole_number,
)
from workers.telemetry_keys import can_be_reported, no_such_key

RESERVED_ENV = frozenset(
    (
        "CONCERTINA_OUTPUT",
        "CONCERTINA_TOKEN",
        "CUDA_VISIBLE_DEVICES",
        "RAY_AUTH_MODE",
        "RAY_AUTH_TOKEN",
        "RAY_AUTH_TOKEN_PATH",
    )
)

TOO_LATE_ENV = frozenset(
    ("LD_AUDIT", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHASHSEED", "PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP")
)
"""Read by a process when it begins, before a worker hears of its job."""

_TOLD: dict[Place, str] = {
    ("name",): "must be a DNS-1123 label: lower-case letters, digits and '-', at most 63 characters",
    ("queue",): "must be a DNS-1123 label: lower-case letters, digits and '-', at most 63 characters",
    ("entrypoint",): "must be module:callable, such as train:build",
    ("workers",): "must be a whole number from 1 to 1024, or a mapping with min and max",
    ("env",): "must be a mapping of names to texts or {secret: NAME}",
    (
        "env",
        "*",
    ): "must be a text (numbers in quotes) or {secret: NAME}, under a name of letters, digits and '_'",
    ("code",): "is read by the CLI, which uploads the folder; elsewhere upload a bundle and give its id as `bundle`",
}


PrecisionName: TypeAlias = Literal["auto", "fp32", "bf16", "fp16"]
_Label: TypeAlias = Annotated[str, Field(max_length=256)]


class JobSpec(BaseModel):
    """A training job. Exactly one of ``steps``, ``epochs`` and ``samples`` says how long it is."""

    model_config = SpecPart.model_config

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    entrypoint: Annotated[str, Field(pattern=ENTRYPOINT_PATTERN)]
    bundle: Annotated[str, Field(min_length=1)] | None = None
    dependencies: Annotated[list[Annotated[str, AfterValidator(requirement)]], Field(max_length=500)] = []
    env: dict[Annotated[str, Field(pattern=ENV_PATTERN)], Annotated[str, AfterValidator(variable_value)] | Secret] = {}
    config: dict[str, JsonValue] = {}
    steps: Positive | None = None
    epochs: Annotated[float, Field(gt=0, le=1e6)] | None = None
    samples: Positive | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63), WHOLE] = 0
    init_from: InitFrom | None = None
    workers: WorkerRange = WorkerRange()
    resources: Resources = Resources()
    batch: BatchSpec = BatchSpec()
    optimizer: OptimizerSpec = OptimizerSpec()
    lr_schedule: LrScheduleSpec = LrScheduleSpec()
    precision: PrecisionName | dict[str, JsonValue] = "auto"
    communication: SchemeName | ExchangeSpec = "auto"
    parallelism: ParallelismSpec = ParallelismSpec()
    compile: bool = False
    checkpoint: CheckpointSpec = CheckpointSpec()
    eval_every_steps: Positive = 100
    retry: RetrySpec = RetrySpec()
    queue: Annotated[str, Field(pattern=NAME_PATTERN)] = "default"
    priority: Annotated[int, Field(ge=-1000, le=1000), WHOLE] = 0
    labels: dict[Annotated[str, Field(min_length=1, max_length=63)], _Label] = {}

    @field_validator("workers", mode="before")
    @classmethod
    def _integer_fixes_the_range(cls, value: Any) -> Any:
        number = whole_number(value)
        if isinstance(number, int) and not isinstance(number, bool):
            return {"min": number, "max": number}
        if isinstance(value, Mapping) and "max" not in value and isinstance(whole_number(value.get("min")), int):
            return {**value, "max": value["min"]}
        return value

    @field_validator("env")
    @classmethod
    def _env_is_free(cls, value: dict[str, str | Secret]) -> dict[str, str | Secret]:
        for name in RESERVED_ENV & value.keys():
            raise ValueError(f"{name} is set by the service; choose another name")
        for name in TOO_LATE_ENV & value.keys():
            raise ValueError(
                f"{name} would have no effect, as it is read before a worker hears of its job; set it where the nodes "
                "of Ray are started, and bring code by the bundle or dependencies"
            )
        return value

    @property
    def base_batch(self) -> int:
        """The global batch at which ``optimizer.lr`` is meant, in samples."""
        return self.optimizer.base_batch

    @property
    def exchange(self) -> ExchangeSpec:
        """``communication``, spelled out."""
        asked = self.communication
        return named(asked) if isinstance(asked, str) else asked

    @property
    def follows_noise(self) -> bool:
        """Whether batch or learning rate follow the gradient noise scale, so that it must be measured."""
        return self.batch.noise_follower is not None

    def total_samples(self, num_train: int) -> int:
        """How many samples the job counts in all, over a dataset of ``num_train`` samples."""
        if self.samples is not None:
            return self.samples
        if self.epochs is not None:
            return max(1, round(self.epochs * num_train))
        assert self.steps is not None
        return self.steps * self.batch.global_size

    def secret_names(self) -> set[str]:
        """Variables of the service's environment that the job needs."""
        return {v.secret for v in self.env.values() if isinstance(v, Secret)}


def parse_job_spec(document: object) -> JobSpec:
    """Read a job spec from parsed YAML or JSON.

    Raises SpecError with every problem found; its code is NOT_AVAILABLE where all that is wrong is
    that a value is not built yet.
    """
    if not isinstance(document, Mapping):
        seen = type(document).__name__
        raise SpecError([FieldProblem("", f"a job spec is a mapping, this is a {seen}; see the README for an example")])
    try:
        spec = JobSpec.model_validate(document)
    except ValidationError as error:
        raise SpecError(problems_of(error, document, JobSpec, _TOLD, hidden="env")) from None
    if problems := _contradictions(spec):
        raise SpecError([as_written(problem, document) for problem in problems])
    if missing := _not_built(spec):
        raise SpecError(missing, code="NOT_AVAILABLE")
    return spec


def _contradictions(spec: JobSpec) -> list[FieldProblem]:
    """Fields that are well-formed each and cannot be true together."""
    module = spec.entrypoint.split(":")[0]
    is_recipe = module.split(".")[0] == "workers"
    metric = spec.checkpoint.metric
    rows: list[tuple[bool, str, str]] = [
        (
            module.endswith(".py"),
            "/entrypoint",
            f"{module!r} is a file; name the module, as in '{module.removesuffix('.py')}:build'",
        ),
        (
            spec.bundle is None and not is_recipe,
            "/bundle",
            f"the entrypoint {spec.entrypoint!r} is not a built-in recipe and there is no bundle; "
            "upload your code (the CLI does it for `code: ./dir`)",
        ),
        (metric is not None and not can_be_reported(metric), "/checkpoint/metric", no_such_key(metric or "")),
        (
            metric == "noise_scale",
            "/checkpoint/metric",
            "'noise_scale' is an average over the rounds so far, told by the few that measure it, and rates no state; "
            "name eval.NAME for what `evaluate` returns, or loss",
        ),
    ]
    rows += _batch_rows(spec.batch, spec.workers)
    rows += _resources_rows(spec.resources)
    rows += [
        (
            "=" in key,
            f"/labels/{pointer_part(key)}",
            "holds '=', which ends the key where jobs are chosen by key=value; leave it out",
        )
        for key in spec.labels
    ]
    told = _length_problems(spec) + _exchange_problems(spec)
    return told + [FieldProblem(pointer, detail) for wrong, pointer, detail in rows if wrong]


def _resources_rows(resources: Resources) -> list[tuple[bool, str, str]]:
    instead = resources.cpus_instead
    told = (
        f"{instead or 0:g} CPUs would take the place of a GPU, and gpus=0 asks for none; set gpus, or leave "
        "cpus_instead out"
    )
    counted = {"cpus": resources.cpus, "cpus_instead": LEAST_CPUS if instead is None else instead}
    return [
        (instead is not None and resources.gpus == 0, "/resources/cpus_instead", told),
        *(
            (cpus < LEAST_CPUS, f"/resources/{name}", f"{cpus:g} is too little for Ray to count; give {LEAST_CPUS:g}")
            for name, cpus in counted.items()
        ),
    ]


def _batch_rows(batch: BatchSpec, workers: WorkerRange) -> list[tuple[bool, str, str]]:
    return [
        (
            batch.max_global_size is not None and batch.adapt == "fixed",
            "/batch/max_global_size",
            f"{batch.max_global_size} bounds a batch that adapts, and batch.adapt is fixed; leave it out, or set "
            "batch.adapt to goodput",
        ),
        (
            batch.global_size < workers.min,
            "/batch/global_size",
            f"{batch.global_size} samples cannot be shared by workers.min={workers.min}; "
            f"use at least {workers.min}, or lower workers.min",
        ),
        (
            isinstance(batch.micro_size, int) and batch.micro_size > batch.global_size,
            "/batch/micro_size",
            f"{batch.micro_size} is above batch.global_size={batch.global_size}; lower it, or use auto",
        ),
        (
            batch.noise_follower is not None and workers.max == 1 and batch.micro_size == batch.global_size,
            "/batch/micro_size",
            f"{batch.micro_size} lets the one worker compute a step in one pass, which shows no gradient noise, and "
            f"{batch.noise_follower} follows that; use auto, or half of it",
        ),
        (
            isinstance(batch.micro_size, int) and batch.max_tokens is not None,
            "/batch/max_tokens",
            f"{batch.max_tokens} tokens and micro_size={batch.micro_size} samples both bound a forward pass; "
            "leave one of them out (max_tokens is for tasks with `length`)",
        ),
        (
            batch.max_global_size is not None and batch.max_global_size < batch.global_size,
            "/batch/max_global_size",
            f"{batch.max_global_size} is below global_size={batch.global_size}; raise it or leave it out",
        ),
    ]


def _length_problems(spec: JobSpec) -> list[FieldProblem]:
    given = [k for k in ("steps", "epochs", "samples") if getattr(spec, k) is not None]
    if len(given) != 1:
        pointer, seen = (f"/{given[1]}", " and ".join(given)) if given else ("/steps", "none of them")
        return [
            FieldProblem(
                pointer, f"exactly one of steps, epochs and samples says how long the job is; given: {seen}; keep one"
            )
        ]
    if spec.steps is not None and spec.steps * spec.batch.global_size > MAX_SAMPLES:
        told = f"{spec.steps} steps of {spec.batch.global_size} samples are above {MAX_SAMPLES}; lower one of them"
        return [FieldProblem("/steps", told)]
    return []


_INSTEAD = "not built yet; use "


def _exchange_problems(spec: JobSpec) -> list[FieldProblem]:
    """A scheme beyond the class of loss that is asked for beside it, or too rough for what the batch is chosen by."""
    asked, found = spec.exchange, list[FieldProblem]()
    scheme, is_mapping = asked.scheme, not isinstance(spec.communication, str)
    if is_mapping and asked.loss_class == "lossless" and scheme not in ("auto", "none", *LOSSY):
        told = f"lossless allows none and auto, and the scheme is {scheme}; use near_lossless, or scheme none"
        found.append(FieldProblem("/communication/loss_class", told))
    if is_mapping and asked.loss_class != "lossy" and scheme in LOSSY:
        told = f"{asked.loss_class} does not allow {scheme}, which a job may pay for in loss; use loss_class: lossy"
        found.append(FieldProblem("/communication/loss_class", told))
    across = asked.options.get("across")
    if is_mapping and asked.loss_class == "lossless" and across not in (None, "none"):
        told = f"lossless allows none, and across is {across!r:.80}; use near_lossless, or across: none"
        found.append(FieldProblem("/communication/options/across", told))
    named = [name for name in (scheme, across) if isinstance(name, str)]
    rough = next((name for name in named if name in BLURRING), None)
    if rough is not None and spec.follows_noise:
        who = spec.batch.noise_follower
        told = f"{who} needs the gradient noise scale, which {rough} does not let be measured; use int8 there"
        found.append(FieldProblem("/communication", told))
    fraction = asked.options.get("fraction")
    if asked.options.get("warm_up") is not None and isinstance(fraction, float) and fraction >= 0.25:
        told = (
            f"begins with a quarter of the gradients, and fraction is {fraction:g}; leave it out or use less than 0.25"
        )
        found.append(FieldProblem("/communication/options/warm_up", told))
    if asked.options.get("momentum") is not None and spec.optimizer.clip_norm is not None:
        told = "clips what all ranks sent, which by communication.options.momentum is momentum; leave one of both out"
        found.append(FieldProblem("/optimizer/clip_norm", f"{spec.optimizer.clip_norm:g} {told}"))
    return found + option_problems(scheme, asked.options, "/communication/options")


def _not_built(spec: JobSpec) -> list[FieldProblem]:
    """Everything that the contract names and this version refuses, with what to use instead."""
    spread = spec.parallelism
    rows: list[tuple[bool, str, object, str]] = [
        (not isinstance(spec.precision, str), "/precision", "a policy", "auto, fp32, bf16 or fp16"),
        (spread.data != "auto", "/parallelism/data", spread.data, "auto, and `workers` for the number of replicas"),
        (spread.tensor != 1, "/parallelism/tensor", spread.tensor, "1"),
        (spread.pipeline != 1, "/parallelism/pipeline", spread.pipeline, "1"),
        (spread.shard, "/parallelism/shard", "true", "false"),
        (
            spread.activation_checkpointing,
            "/parallelism/activation_checkpointing",
            "true",
            "false, or torch.utils.checkpoint in the model",
        ),
        (spec.compile, "/compile", "true", "false, or torch.compile in your entrypoint"),
        (spec.resources.gpus > 1, "/resources/gpus", f"{spec.resources.gpus:g}", "1 or less, and more workers"),
        (spec.queue != "default", "/queue", spec.queue, "default"),
        (spec.priority != 0, "/priority", spec.priority, "0"),
    ]
    return [
        FieldProblem(pointer, f"{value} is {_INSTEAD}{instead}") for wrong, pointer, value, instead in rows if wrong
    ]
