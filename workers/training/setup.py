"""What a worker builds once: task, device, state, and the fixed tools of its rounds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from workers.assignment import Assignment
from workers.errors import CheckpointError, DataError, EntrypointError, UserCodeError, described
from workers.exchange_options import bucket_mib_of, dense_first_of, filled
from workers.lr import LrRule
from workers.spec import JobSpec
from workers.status import Phase
from workers.task import TrainingTask
from workers.training import build, memory, pass_note
from workers.training.batching import Batcher, Turnstile
from workers.training.bounds import Bounds
from workers.training.data import SampleOrder
from workers.training.dealer import Dealer
from workers.training.device import pick_device
from workers.training.exchange.buckets import grouped
from workers.training.feed import Feed
from workers.training.length_sources import ByIndex, BySample, LengthSource
from workers.training.lengths import Lengths
from workers.training.loader_choice import LoaderChoice
from workers.training.micro import MicroSize
from workers.training.micro_tuning import MicroTuning, least_size
from workers.training.pass_note import PassNote
from workers.training.pass_share import PassShare
from workers.training.pass_tokens import PassTokens
from workers.training.pieces import check_model
from workers.training.precision.applier import PrecisionApplier
from workers.training.reading import Reader
from workers.training.state import TrainingState
from workers.training.token_tuning import TokenTuning

MAX_TOLD = 5
_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """``total_samples`` is how many samples the job counts in all, ``num_eval`` how many an evaluation has.

    ``feed`` gives the micro-batches of ``train_data``; whoever has the setup ends it. ``train_dealer`` and
    ``eval_dealer`` are there where the task tells lengths; ``micro`` then is of tokens.
    """

    assignment: Assignment
    task: TrainingTask
    device: torch.device
    state: TrainingState
    order: SampleOrder
    feed: Feed
    evaluation: Batcher | None
    num_eval: int
    precision: PrecisionApplier
    micro: MicroTuning | TokenTuning
    pass_note: PassNote
    total_samples: int
    train_dealer: Dealer | None = None
    eval_dealer: Dealer | None = None

    @property
    def spec(self) -> JobSpec:
        return self.assignment.spec

    def has_crossed(self, before: int, after: int, every_steps: int) -> bool:
        """Whether progress from one cursor to another passed a multiple of ``every_steps``, counted in samples."""
        every = every_steps * self.spec.batch.global_size
        return after // every > before // every

    def step_at(self, cursor: int) -> int:
        """Progress in steps at ``batch.global_size``, rounded up so that only a whole job reaches its end."""
        return -(-cursor // self.spec.batch.global_size)


def prepare(
    assignment: Assignment, fetch_bundle: Callable[[], bytes] | None, set_phase: Callable[[Phase], None]
) -> Setup:
    """Build the task and everything around it; changes this process (threads, memory limit, environment).

    Raises errors of the tree: what the user's code did wrong, or what does not fit this worker.
    """
    spec = assignment.spec
    torch.set_num_threads(max(1, int(spec.resources.cpus)))
    device = pick_device(spec.resources.gpus)
    limit_bytes = memory.limit_of(spec.resources, device)
    if limit_bytes is not None:
        memory.enforce_limit(limit_bytes, device)
    task = build.build_task(assignment, fetch_bundle, lambda line: print(line, flush=True), set_phase)
    return equip(assignment, task, device)


def equip(assignment: Assignment, task: TrainingTask, device: torch.device) -> Setup:
    """Put a built task on the device with its optimizer, order and batchers."""
    spec = assignment.spec
    if len(task.train_data) == 0:
        raise DataError("train_data is empty (0 samples); give at least one sample")
    _check_shapes(task.model)
    task.model.to(device)
    try:
        check_model(task.model.state_dict())
    except CheckpointError as error:  # found by the first save it would have cost all the steps before
        raise UserCodeError(error.message) from error
    state = TrainingState(task.model, _optimizer(task, spec), spec.optimizer.lr)
    _check_buckets(spec, [*state.trained.values()])
    micro, has_rows = _micro(spec, task, device), task.weight is None
    turnstile, dealer = Turnstile(), _dealers(spec, task, micro)
    train = Batcher(task.train_data, task.collate, device, has_rows=has_rows, turnstile=turnstile)
    has_eval = task.eval_data is not None and task.evaluate is not None
    if not has_eval and (spec.checkpoint.metric or "").startswith("eval."):
        raise EntrypointError(
            f"checkpoint.metric={spec.checkpoint.metric!r} needs an evaluation, and the task has none; "
            "return eval_data and evaluate, or leave the metric out"
        )
    evaluation = None
    if task.eval_data is not None and has_eval:
        evaluation = Batcher(task.eval_data, task.collate, device, "eval_data", has_rows=has_rows, turnstile=turnstile)
    return Setup(
        assignment=assignment,
        task=task,
        device=device,
        state=state,
        order=SampleOrder(len(task.train_data), spec.seed),
        feed=Feed(Reader(train, spec.seed), device, LoaderChoice(spec.resources.cpus)),
        evaluation=evaluation,
        num_eval=len(task.eval_data) if task.eval_data is not None else 0,
        precision=PrecisionApplier(device),
        micro=micro,
        pass_note=pass_note.own(assignment),
        total_samples=spec.total_samples(len(task.train_data)),
        train_dealer=dealer(train, state.needs_pairs and not task.packed),
        eval_dealer=None if evaluation is None else dealer(evaluation, False),
    )


def _micro(spec: JobSpec, task: TrainingTask, device: torch.device) -> MicroTuning | TokenTuning:
    """In samples; in tokens where micro-batches are formed by length, and ``Dealer.bounds`` hold besides."""
    fixed = spec.batch.micro_size
    if task.tells_lengths:
        return TokenTuning(PassTokens(_bounds(spec, task).unit, is_fixed=isinstance(fixed, int)), device)
    return MicroTuning(MicroSize(fixed if isinstance(fixed, int) else None, least_size(task.model)), device)


def _bounds(spec: JobSpec, task: TrainingTask) -> Bounds:
    fixed = spec.batch.micro_size
    return Bounds(
        max_tokens=spec.batch.max_tokens,
        max_samples=fixed if isinstance(fixed, int) else None,
        is_packed=task.packed,
    )


def _dealers(
    spec: JobSpec, task: TrainingTask, micro: MicroTuning | TokenTuning
) -> Callable[[Batcher, bool], Dealer | None]:
    """Makes who deals the samples of a dataset by their lengths; None where the task tells none."""
    bounds = _bounds(spec, task)
    is_bounded = bounds.max_tokens is not None or bounds.max_samples is None
    # Packed passes are few anyway.
    passes = PassShare(bounds.max_tokens) if is_bounded and not task.packed else None

    def dealer(batcher: Batcher, is_paired: bool) -> Dealer | None:
        if not isinstance(micro, TokenTuning):
            return None
        lengths = Lengths(len(batcher.dataset), _length_source(spec, task, batcher), bounds.max_tokens)
        return Dealer(lengths=lengths, bounds=bounds, micro=micro, passes=passes, is_paired=is_paired)

    return dealer


def _length_source(spec: JobSpec, task: TrainingTask, batcher: Batcher) -> LengthSource:
    if task.length_at is not None:
        return ByIndex(batcher.dataset, task.length_at, batcher.name, batcher.turnstile)
    assert task.length is not None
    return BySample(batcher.dataset, task.length, spec.seed, batcher.name, batcher.turnstile)


def _check_shapes(model: nn.Module) -> None:
    """Raises UserCodeError where a parameter waits for the first batch to learn its shape: an optimizer cannot."""
    lazy = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if is_lazy(tensor)]
    if lazy:
        more = f" and {len(lazy) - MAX_TOLD} more" if len(lazy) > MAX_TOLD else ""
        raise UserCodeError(
            f"the model has parameters without a shape yet ({', '.join(lazy[:MAX_TOLD])}{more}), of lazy modules such "
            "as LazyLinear; run one batch through it before the entrypoint returns it, as in "
            "`with torch.no_grad(): model(batch)`, or use modules that are given their sizes"
        )


def _optimizer(task: TrainingTask, spec: JobSpec) -> torch.optim.Optimizer:
    optimizer, momentum = _built(task, spec.optimizer.lr), spec.exchange.options.get("momentum")
    if momentum is not None:
        _check_momentum(optimizer, momentum)
    if spec.batch.lr_rule is LrRule.ADASCALE and not isinstance(optimizer, torch.optim.SGD):
        raise UserCodeError(
            f"batch.lr_rule is adascale, which is for SGD, and the optimizer is {type(optimizer).__name__}; return "
            "optimizer=lambda params, lr: torch.optim.SGD(params, lr) from the entrypoint, or use lr_rule: sqrt"
        )
    return optimizer


def _check_buckets(spec: JobSpec, trained: Sequence[nn.Parameter]) -> None:
    """Raises UserCodeError where all gradients would go as they are, under the name of a scheme that does nothing."""
    options = filled(spec.exchange.scheme, spec.exchange.options)
    dense_first, bucket_mib = dense_first_of(options), bucket_mib_of(options)
    num_buckets = len(grouped(trained, bucket_mib)) if dense_first else 0
    if dense_first and dense_first >= num_buckets:
        most = f"give at most {num_buckets - 1}, " if num_buckets > 1 else "leave it out, "
        raise UserCodeError(
            f"communication.options.dense_first is {dense_first}, and the gradients leave in {num_buckets} "
            f"bucket{'s' if num_buckets > 1 else ''} of {bucket_mib} MiB, so that none of them would travel as "
            f"{spec.exchange.scheme}; {most}make buckets smaller (bucket_mib), or use scheme: none"
        )


def _built(task: TrainingTask, lr: float) -> torch.optim.Optimizer:
    parameters = [p for p in task.model.parameters() if p.requires_grad]
    if task.optimizer is None:
        return torch.optim.AdamW(parameters, lr=lr, fused=_can_fuse(parameters))
    try:
        optimizer = task.optimizer(parameters, lr)
    except (Exception, SystemExit) as error:
        raise EntrypointError(
            f"optimizer(params, lr={lr}) raised {described(error)}; it must build a torch optimizer"
        ) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise EntrypointError(f"optimizer returned a {type(optimizer).__name__}; return a torch.optim.Optimizer")
    _check_step(optimizer)
    return optimizer


def _check_step(optimizer: torch.optim.Optimizer) -> None:
    """Raises UserCodeError where a step needs more than dense gradients, which are all that workers exchange."""
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise UserCodeError(
            f"the optimizer {name} takes sparse gradients only, and gradients are dense here, also those of "
            "Embedding(sparse=True); use an optimizer over dense gradients, such as AdamW"
        )
    if (missing := _required(optimizer.step)) is not None:
        raise UserCodeError(
            f"the optimizer {name} cannot step without {missing!r}, and all that a step is given here is one gradient, "
            "summed over all workers; use a first-order optimizer, such as AdamW"
        )


def _check_momentum(optimizer: torch.optim.Optimizer, given: object) -> None:
    """Raises UserCodeError where gradients that were ``given`` momentum would get it twice."""
    kept = [(key, group[key]) for group in optimizer.param_groups for key in ("momentum", "betas") if key in group]
    own = next((key for key, value in kept if torch.as_tensor(value).view(-1)[:1].any()), None)
    if own is not None:
        raise UserCodeError(
            f"communication.options.momentum is {given}, and the optimizer {type(optimizer).__name__} has {own} "
            "besides; build it without, as torch.optim.SGD(params, lr), or leave the option out"
        )


def _required(function: Callable[..., object]) -> str | None:
    """The first argument without which a function cannot be called; None where there is none, or nobody can tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return next((p.name for p in parameters if p.default is p.empty and p.kind not in _OPEN), None)


def _can_fuse(parameters: list[nn.Parameter]) -> bool:
    """Whether torch's fused kernel serves: one pass a step instead of a dozen small operations a parameter."""
    return all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
