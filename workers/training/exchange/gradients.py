"""The exchange of one round's gradients, overlapped with the backward pass that makes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from workers.errors import UserCodeError
from workers.exchange_options import BUCKET_MIB
from workers.training.exchange.buckets import Bucket, lay_out
from workers.training.exchange.lane import Lane, Side
from workers.training.exchange.meter import Meter, PassClock, Took, meter, pass_clock
from workers.training.exchange.reached import unreached
from workers.training.exchange.reals import real_shape
from workers.training.exchange.residual import Places
from workers.training.exchange.schemes import Convoy, InFlight, Scheme
from workers.training.exchange.tail import Tail
from workers.training.exchange.vector import NUM_SLOTS
from workers.training.world import World

_HALF = frozenset({torch.float16, torch.bfloat16})


def _norms(gradients: Sequence[torch.Tensor], *, is_wide: bool) -> list[torch.Tensor]:
    """In fp32 at least: fp16 ends where a thousand values of 2,000 are, and bf16 has three digits. Or all in fp64."""
    if is_wide:
        return [*torch._foreach_norm([*gradients], 2, torch.float64)]
    half = [gradient for gradient in gradients if gradient.dtype in _HALF]
    whole = [gradient for gradient in gradients if gradient.dtype not in _HALF]
    norms = [*torch._foreach_norm(half, 2, torch.float32)] if half else []
    return [*norms, *torch._foreach_norm(whole)] if whole else norms


class GradientExchange:
    """Gradients are views into flat buckets for good; buckets leave in a fixed order on every rank.

    A round: ``clear``; backward passes; ``arm`` before the last; ``finish``; ``measure``. The tail (the vector,
    which parameters were used, buffers) is written by ``fill`` when the last bucket leaves. ``bucket_mib`` as in
    ``lay_out``, the same on all ranks. ``untold_bytes`` were sent since ``values`` was last asked for.
    """

    def __init__(
        self, named_parameters: Sequence[tuple[str, nn.Parameter]], num_extra: int, bucket_mib: int = BUCKET_MIB
    ) -> None:
        self._names = [name for name, _ in named_parameters]
        self._parameters = [parameter for _, parameter in named_parameters]
        self._layout = lay_out(self._parameters, NUM_SLOTS + len(self._parameters) + num_extra, bucket_mib)
        self.places: Places = [
            {self._names[i]: real_shape(self._parameters[i]) for i in bucket.indexes} for bucket in self._layout.buckets
        ]
        self.tail = Tail(self._layout.tail, len(self._parameters))
        self._flats = [bucket.flat for bucket in self._layout.buckets]
        self._lane = Lane()
        self._side: Side | None = None
        self._gradients = [bucket.gradients for bucket in self._layout.buckets if bucket.indexes]
        self._used = [False] * len(self._parameters)
        self._unused_before: list[int] = []
        self._in_flight: list[InFlight | None] = []
        self._ending = set[int]()
        self.has_launched = False
        """Whether a part of this round's gradients has left, so that they cannot be made again."""
        self._fill: Callable[[], None] | None = None
        self._error: Exception | None = None
        self._world: World | None = None
        self._scheme: Scheme | None = None
        self._has_none = False
        self._num_values = sum(real_shape(parameter).numel() for parameter in self._parameters)
        self._meter: Meter | None = None
        self._backward: PassClock | None = None
        self.took: Took | None = None
        self.untold_bytes = 0
        self._hooks = [_hooked(p, self._hook(i, self._layout.views[i])) for i, p in enumerate(self._parameters)]
        self._attach()

    def remove(self) -> None:
        """Take the hooks off the parameters and let go of their gradients."""
        for hook in self._hooks:
            hook.remove()
        if self._side is not None:
            self._side.close()
        for parameter in self._parameters:
            parameter.grad = None

    def join(self, world: World, scheme: Scheme) -> None:
        """Exchange within this world from the next round on."""
        if world is self._world and scheme is self._scheme:
            return
        self._world, self._scheme = world, scheme
        self._lane = Lane(self._flats[0].device) if world.size > 1 else Lane()
        if world.device.type == "cuda":
            scheme.coding.by_device()
        self._relay(world, scheme)
        scheme.prepare([[*shapes.values()] for shapes in self.places])

    def _relay(self, world: World, scheme: Scheme) -> None:
        """Whether buckets take later hops while others are filled, by a thread, as the host of CPUs waits for each.

        The same on all ranks, as it is the order of collectives. Of two buckets the first would do so when the other
        has left, and then none is filled any more.
        """
        if self._side is not None:
            self._side.close()
            self._side = None
        is_relayed = len(self._flats) > 2 and scheme.is_relayed(world.size)
        if is_relayed and world.device.type == "cpu" and not world.is_mixed:
            self._side = Side()
            scheme.coding.by_thread()

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        """The parameters whose gradients travel."""
        return self._parameters

    @property
    def gradients(self) -> Sequence[torch.Tensor]:
        """Their gradients as they are now, after ``finish`` the sums over all ranks."""
        return self._layout.views

    @property
    def blurs_norm(self) -> bool:
        """Whether ``norm`` after ``finish`` says little of the sums over all ranks."""
        assert self._world is not None
        assert self._scheme is not None
        return self._scheme.blurs_norm if self._world.size > 1 else self._scheme.blurs_alone

    def clear(self) -> None:
        """Begin a round, or begin it again: no gradient, nothing under way."""
        self._forget_sent()
        self._fill = self._error = self._backward = None
        self._used[:] = [False] * len(self._used)
        if self._has_none:
            self._attach()
        torch._foreach_zero_(self._flats)
        for bucket in self._layout.buckets:
            bucket.is_launched = False

    def arm(self, fill: Callable[[], None], loss: torch.Tensor) -> None:
        """The coming backward pass, from ``loss``, is this rank's last of the round: buckets leave as they fill up.

        None waits for parameters that the round before did not use here and to which no gradient flows now either.
        """
        self._backward = pass_clock(self._world)
        if self._world is None or self._world.size == 1 or len(self._flats) == 1:
            return
        self._fill = fill
        for bucket in self._layout.buckets:
            bucket.num_missing = len(bucket.indexes)
        if self._unused_before:
            index_of = {id(self._parameters[i]): i for i in self._unused_before}
            for parameter in unreached(loss, [self._parameters[i] for i in self._unused_before]):
                self._layout.bucket_of[index_of[id(parameter)]].num_missing -= 1

    def finish(self, fill: Callable[[], None]) -> None:
        """Send what has not left yet and wait for all of it; all ranks must call it. Raises WorldError."""
        self._fill = fill
        if self._error is not None:
            raise self._error
        if self._backward is not None:
            self._backward.stop()
        for number, bucket in enumerate(self._layout.buckets):
            if not bucket.is_launched:
                self._launch(number, bucket)
        self._unused_before = [index for index, is_used in enumerate(self._used) if not is_used]
        assert self._meter is not None
        self._meter.wait()
        if self._side is not None:
            self._side.join()
        with self._lane.within():
            Convoy([transfer for transfer in self._in_flight if transfer is not None]).wait()
        self._lane.join()
        self._meter.stop()
        self._forget_sent()
        self._fill = None

    def measure(self) -> Took:
        """What the exchange that has just ended took since the first bucket left; kept as ``took`` until the next.

        Once, and best after a result of the exchange was read, when there is nothing left to wait for.
        """
        assert self._meter is not None
        self.took, self._meter = self._meter.took(self._backward), None
        self.untold_bytes += self.took.wire_bytes or 0
        return self.took

    def values(self, num_steps: int = 1) -> dict[str, float]:
        """Telemetry of the latest exchange, which was of so many steps, by key; of its round this is told once.

        What has been sent since the last call for rounds that nothing is told of, as they were done again, is in it.
        """
        assert self.took is not None
        assert self._world is not None
        redone_bytes, self.untold_bytes = self.untold_bytes - (self.took.wire_bytes or 0), 0
        return self.took.values(self._num_values, self._world.size, num_steps, redone_bytes)

    def put(self, values: Sequence[torch.Tensor]) -> None:
        """Begin anew with these as this rank's gradients of the round, one for each of ``parameters``, all used."""
        self.clear()
        torch._foreach_copy_(self._layout.views, [*values])
        self._used[:] = [True] * len(self._used)

    def drop(self) -> None:
        """Forget what is under way, but for what was sent of it: the world is gone."""
        if self._side is not None:
            self._side.drop()
        if self._meter is not None:
            self.untold_bytes += self._meter.sent_bytes() or 0
        self._lane.join()
        self._forget_sent()
        self._fill = self._error = self._meter = self._world = None

    def write_used(self) -> int:
        """Put into the tail which parameters this rank used, and return how many it did not; part of ``fill``."""
        num_unused = self._used.count(False)
        self.tail.write_used(self._used, num_unused)
        return num_unused

    def leave_out_unused(self) -> list[str]:
        """Give parameters that no rank used no gradient, so that the optimizer passes over them as in a plain loop.

        Returns their names.
        """
        used = [num_using > 0 for num_using in self.tail.read_used()]
        self._leave_out(used)
        return [name for name, is_used in zip(self._names, used, strict=True) if not is_used]

    def leave_out_unused_here(self) -> None:
        """The same of parameters that this rank did not use."""
        self._leave_out(self._used)

    def _leave_out(self, used: Iterable[bool]) -> None:
        for parameter, is_used in zip(self._parameters, used, strict=True):
            if not is_used:
                parameter.grad = None
                self._has_none = True

    def norm(self) -> float:
        """The 2-norm of all gradients as they are now; not finite if any of them is not.

        Where ranks' processors are of unlike kinds only then: squares overflow on the one sooner than on the other, and
        all must take it for the same.
        """
        is_wide = self._world is not None and self._world.is_mixed
        if len(self._gradients) == 1 and not is_wide:
            only = self._gradients[0]
            return float(torch.linalg.vector_norm(only, dtype=torch.float32 if only.dtype in _HALF else None))
        parts = _norms(self._gradients, is_wide=is_wide)
        return math.hypot(*torch.stack([part.double() for part in parts]).tolist())

    def scale(self, factor: float) -> None:
        """Multiply all gradients."""
        torch._foreach_mul_(self._gradients, factor)

    def _forget_sent(self) -> None:
        self._in_flight.clear()
        self._ending.clear()
        self.has_launched = False

    def _attach(self) -> None:
        for parameter, view in zip(self._parameters, self._layout.views, strict=True):
            parameter.grad = view
        self._has_none = False

    def _hook(self, index: int, view: torch.Tensor) -> Callable[[torch.Tensor], None]:
        bucket, used = self._layout.bucket_of[index], self._used

        def on_gradient(parameter: torch.Tensor) -> None:
            if bucket.is_launched:
                raise UserCodeError(
                    f"the gradient of {self._names[index]!r} arrived a second time in one backward pass; "
                    "where the model uses torch.utils.checkpoint, give it use_reentrant=False"
                )
            if parameter.grad is not view:  # the user's code had set it to None
                assert parameter.grad is not None
                view.add_(parameter.grad)
                parameter.grad = view
            used[index] = True
            if self._fill is not None:
                bucket.num_missing -= 1
                if bucket.num_missing == 0:
                    self._launch_full()

        return on_gradient

    def _launch_full(self) -> None:
        """Send the buckets that are full, up to the first that is not: the order is the same on all ranks."""
        if self._error is not None:
            return
        try:
            for number, bucket in enumerate(self._layout.buckets):
                if bucket.num_missing > 0:
                    return
                if not bucket.is_launched:
                    self._launch(number, bucket)
        except Exception as error:  # raised by finish: out of a hook it would look like an error of the user's model
            self._error = error

    def _launch(self, number: int, bucket: Bucket) -> None:
        assert self._world is not None
        assert self._scheme is not None
        if bucket is self._layout.buckets[-1] and self._fill is not None:
            self._fill()
        if not self.has_launched:
            self._meter = meter(self._world, self._scheme)
        bucket.is_launched = self.has_launched = True
        if self._side is None:
            self._send(number, bucket)
        else:
            self._side.give(partial(self._send, number, bucket))

    def _send(self, number: int, bucket: Bucket) -> None:
        """Begin to send a bucket; then those before go on, so in the same order on all ranks."""
        assert self._world is not None
        assert self._scheme is not None
        with self._lane.within():
            before = [*self._in_flight]
            self._in_flight.append(self._scheme.start(number, bucket.flat, bucket.gradients.numel(), self._world))
            if self._side is not None:
                self._move_on(before)

    def _move_on(self, before: Sequence[InFlight | None]) -> None:
        """Let each take its next hop, and what began its last with an earlier bucket be decoded."""
        for number, earlier in enumerate(before):
            if number in self._ending:
                self._ending.remove(number)
                assert earlier is not None
                earlier.wait()
                self._in_flight[number] = None
            elif earlier is not None and not earlier.forward():
                self._ending.add(number)


def _hooked(parameter: nn.Parameter, hook: Callable[[torch.Tensor], None]) -> RemovableHandle:
    """Also where the parameter is frozen at present, which torch would refuse."""
    is_frozen = not parameter.requires_grad
    parameter.requires_grad_(True)
    try:
        return parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call,no-any-return]  # torch's
    finally:
        parameter.requires_grad_(not is_frozen)
