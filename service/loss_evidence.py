"""What an exchange of gradients costs in loss, and by what that is known: few were measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from workers.exchange_options import NAMED, filled, formats_of, loss_class_of, options_of

_SCHEMES = ("bf16", "fp16", "int8", "int4", "two_four", "topk", "powersgd", "local_steps")
_VARIANTS: tuple[Mapping[str, float], ...] = ({"momentum": 0.9}, {"warm_up": 100}, {"momentum": 0.9, "warm_up": 100})
_MEASURED = frozenset(
    (
        *((scheme, filled(scheme, {})) for scheme in _SCHEMES),
        *(("topk", filled("topk", variant)) for variant in _VARIANTS),
    )
)
"""What ``tests.benchmarks.compression_loss`` compares with ``none``, as README tells: with these options, of topk also
with those, and over no racks."""

_OF_FOUR = {"int8": " and of four", "int4": "; of four it was worse in one setting of four"}
"""What runs of four ranks showed, of which each sum is encoded once more than of two."""

_NO_OPTIONS: Mapping[str, object] = MappingProxyType({})


def loss_in_words(name: str, options: Mapping[str, object] = _NO_OPTIONS) -> str:
    """The class of loss of the exchange of this name, and whether runs showed it; ``options`` are its scheme's."""
    scheme = formats_of(name)[0]
    unnamed = {key: value for key, value in options.items() if key not in NAMED}
    usual, own = dict(filled(scheme, {})), filled(scheme, {**unnamed, **dict(options_of(name))})
    unusual = [f"{key} {value}" for key, value in own if key not in NAMED and usual.get(key) != value]
    told = f"{' with '.join(filter(None, (name, ' and '.join(unusual))))} counts as {loss_class_of(name)}"
    if loss_class_of(name) == "lossless":
        return f"{told}, as nothing is rounded"
    if (scheme, own) in _MEASURED:
        return f"{told}, by paired runs of two ranks{_OF_FOUR.get(scheme, '')} (README has what they showed)"
    return f"{told} by its formats, and was not measured in paired runs (README has those that were)"
