"""What an exchange of gradients costs in loss, and by what that is known: few were measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from workers.exchange_options import NAMED, Options, filled, formats_of, loss_class_of, options_of

SETTINGS = (("digits, AdamW", 0.0759), ("digits, SGD", 0.0792), ("chargpt, AdamW", 1.5212), ("chargpt, SGD", 1.8024))
"""What ``tests.benchmarks.compression_loss`` trains, and the mean loss at the end by ``none``."""

NUM_SEEDS = 5


class Paired(NamedTuple):
    """How much higher the loss was than by ``none`` from the same seeds, with half a 95 % interval."""

    difference: float
    interval: float
    num_diverged: int = 0


_Found: TypeAlias = Sequence[Paired | None]


def _as(scheme: str, **options: float) -> tuple[str, Options]:
    return scheme, filled(scheme, options)


PAIRED: Mapping[tuple[str, Options], _Found] = {
    _as("bf16"): (Paired(-0.0001, 0.0002), Paired(-0.0003, 0.001), Paired(-0.0005, 0.0116), Paired(-0.0016, 0.004)),
    _as("fp16"): (Paired(0.0, 0.0002), Paired(-0.0003, 0.0002), Paired(-0.0048, 0.0054), Paired(0.0086, 0.0245)),
    _as("int8"): (Paired(-0.0003, 0.0007), Paired(-0.0006, 0.001), Paired(0.011, 0.0371), Paired(0.0023, 0.0081)),
    _as("int4"): (Paired(0.0003, 0.0022), Paired(-0.0007, 0.0013), Paired(0.0134, 0.0139), Paired(0.0013, 0.0325)),
    _as("two_four"): (Paired(-0.0002, 0.0019), Paired(-0.0005, 0.0054), Paired(0.0374, 0.0288), Paired(0.2028, 0.1512)),
    _as("topk"): (
        *(Paired(0.0316, 0.0083), Paired(-0.0119, 0.0218)),
        *(Paired(0.7708, 0.2165), Paired(0.3971, 0.1377, num_diverged=1)),
    ),
    _as("topk", warm_up=100): (
        *(Paired(0.0154, 0.0104), Paired(-0.009, 0.0139), Paired(0.4963, 0.1731), Paired(0.2244, 0.0298)),
    ),
    _as("topk", momentum=0.9): (None, Paired(0.0098, 0.0024), None, Paired(0.1994, 0.0625)),
    _as("topk", momentum=0.9, warm_up=100): (None, Paired(0.0105, 0.0049), None, Paired(0.0983, 0.0863)),
    _as("powersgd"): (Paired(0.0036, 0.0023), Paired(-0.0005, 0.0032), Paired(0.1538, 0.0927), Paired(0.0448, 0.0207)),
    _as("local_steps"): (
        *(Paired(0.0026, 0.0025), Paired(-0.0038, 0.0049), Paired(0.1364, 0.0736), Paired(0.0827, 0.0408)),
    ),
}
"""Of two ranks, by ``SETTINGS``, as README has them; over no racks, and with all options as they are here."""

OF_FOUR: Mapping[str, Sequence[Paired]] = {
    "int8": (Paired(-0.0003, 0.0009), Paired(-0.0007, 0.0008), Paired(0.0251, 0.0357), Paired(0.0, 0.0172)),
    "int4": (Paired(0.0012, 0.0037), Paired(-0.0009, 0.0011), Paired(0.0212, 0.0115), Paired(0.0087, 0.0402)),
}
"""Of four ranks, of which each sum is encoded once more than of two."""

_NO_OPTIONS: Mapping[str, object] = MappingProxyType({})


def loss_in_words(name: str, options: Mapping[str, object] = _NO_OPTIONS) -> str:
    """The class of loss of the exchange of this name, and what runs showed of it; ``options`` are its scheme's."""
    scheme = formats_of(name)[0]
    unnamed = {key: value for key, value in options.items() if key not in NAMED}
    usual, own = dict(filled(scheme, {})), filled(scheme, {**unnamed, **dict(options_of(name))})
    unusual = [f"{key} {value}" for key, value in own if key not in NAMED and usual.get(key) != value]
    told = f"{' with '.join(filter(None, (name, ' and '.join(unusual))))} counts as {loss_class_of(name)}"
    if loss_class_of(name) == "lossless":
        return f"{told}, as nothing is rounded"
    found = PAIRED.get((scheme, own))
    if found is None:
        return f"{told} by its formats, and was not measured in paired runs (README has those that were)"
    told = f"{told}: in paired runs of two ranks ({NUM_SEEDS} seeds, 95 % intervals) losses ended {_in_words(found)}"
    of_four = f"; of four ranks {_in_words(OF_FOUR[scheme])}" if scheme in OF_FOUR else ""
    return f"{told} above none's{of_four}"


def _in_words(found: _Found) -> str:
    return ", ".join(_told(one, *SETTINGS[number]) for number, one in enumerate(found) if one is not None)


def _told(one: Paired, where: str, dense: float) -> str:
    """Of the loss by ``none`` of two ranks, which is ``dense``."""
    diverged = f"; {one.num_diverged} diverged" if one.num_diverged else ""
    return f"{100 * one.difference / dense:+.1f} ± {100 * one.interval / dense:.1f} % ({where}{diverged})"
