"""Another micro-batch from now on, as memory or speed ask for it; or words why there is none that fits."""

from __future__ import annotations

from workers.errors import OutOfMemoryError
from workers.training import memory
from workers.training.mailbox import Mailbox
from workers.training.micro import Choice
from workers.training.setup import Setup


class MemoryInExchangeError(OutOfMemoryError):
    """Memory ran out after gradients of this round had left: the round cannot be redone by this rank alone."""


def back_off(setup: Setup, mailbox: Mailbox, error: Exception, tried: int, unit: str, cost_s: float) -> int:
    """Halve the micro-batch of ``tried`` samples, or tokens where that is the ``unit``, and tell so; the new size.

    ``cost_s`` are the seconds of what is to be computed again.

    Raises OutOfMemoryError where there is no smaller one, or the spec fixes its size.
    """
    size = setup.micro.halve(tried)
    if size is None:
        raise too_big(setup, error, tried, unit) from error
    told = f"out of memory at {tried} {unit} a forward pass; going on with {size} ({memory.told_lack(error)})"
    print(told, flush=True)
    setup.micro.replaced(size)
    mailbox.micro_changed(before=tried, after=size, reason=told, unit=unit, cost_s=cost_s)
    return size


def settle(setup: Setup, mailbox: Mailbox, choice: Choice) -> None:
    """Tell what was settled on, where it is not what it was before."""
    is_news = setup.micro.is_news(choice)
    before = setup.micro.replaced(choice.size, is_whole=choice.is_whole)
    if is_news:
        print(f"micro-batch: {choice.reason}", flush=True)
        mailbox.micro_changed(
            before=before,
            after=choice.size,
            reason=choice.reason,
            unit=choice.unit,
            seconds=choice.seconds,
            compared=choice.compared,
            cost_s=choice.cost_s,
        )


def too_big(setup: Setup, error: Exception, tried: int, unit: str = "samples") -> OutOfMemoryError:
    """The error for ``tried`` samples (or tokens) that do not fit: what, how large, which limit, what to do."""
    model, limit = setup.state.model, memory.told_limit(setup.spec.resources)
    num_bytes = sum(t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()])
    size = f"batch.micro_size={tried} samples" if unit == "samples" else f"a micro-batch of {tried} {unit}"
    samples = "one sample" if tried == 1 else size
    remedy = "" if tried == 1 else "set batch.micro_size to auto or lower it, "
    return OutOfMemoryError(
        f"{samples} of {type(model).__name__} ({num_bytes} bytes of parameters and buffers) does not fit into a "
        f"worker's memory ({limit}): {memory.told_lack(error)}; {remedy}give workers more memory, "
        "or make the model or its samples smaller"
    )
