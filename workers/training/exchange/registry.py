"""The schemes that are built, by the name that a plan has for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from workers.errors import JobError
from workers.exchange_options import Options, across_of, dense_first_of, filled
from workers.plan import Exchange
from workers.training.exchange.codecs import Bf16, Codec, Exact, Fp16, Int4, Int8
from workers.training.exchange.compressed import Compressed
from workers.training.exchange.dense_first import DenseFirst
from workers.training.exchange.hierarchical import Hierarchical
from workers.training.exchange.powersgd import PowerSgd
from workers.training.exchange.racks import seating
from workers.training.exchange.residual import Residual
from workers.training.exchange.schemes import Dense, Scheme
from workers.training.exchange.sparse import Sparse, sparse_sums
from workers.training.exchange.topk import TopK
from workers.training.exchange.two_four import TwoFour

CODECS: Mapping[str, Codec] = {codec.name: codec for codec in (Exact(), Bf16(), Fp16(), Int8(), Int4())}
"""Formats of what goes from rack to rack."""

INSIDE: Mapping[str, Codec] = {**CODECS, "two_four": TwoFour()}
"""Formats of what goes within one."""

SCHEMES: Mapping[str, Callable[..., Scheme]] = {
    "none": Dense,
    **{codec.name: partial(Compressed, codec) for codec in (Bf16(), Fp16(), Int8(), Int4(), TwoFour())},
    "topk": TopK,
    "powersgd": PowerSgd,
}
"""Each takes a residual and, by name, the options that its scheme has."""

_NOT_OWN = ("across", "bucket_mib", "dense_first")


def scheme_named(name: str, residual: Residual, options: Options = ()) -> Scheme:
    """A fresh scheme that keeps what it leaves out in ``residual``; options that are not given have their defaults.

    Raises JobError for one that is not built.
    """
    if name not in SCHEMES:
        raise JobError(f"the exchange scheme {name!r} is not built; use one of {', '.join(SCHEMES)}")
    own = {key: value for key, value in filled(name, dict(options)) if key not in _NOT_OWN}
    scheme, dense_first = SCHEMES[name](residual, **own), dense_first_of(options)
    return DenseFirst(scheme, dense_first, residual) if dense_first else scheme


def scheme_for(exchange: Exchange, racks: Sequence[int], rank: int, residual: Residual) -> Scheme:
    """A fresh scheme as a plan has it, for ranks in these racks. Raises JobError for one that is not built.

    Of local steps it is what their differences travel by.
    """
    if exchange.scheme == "local_steps":
        return scheme_named(str(dict(exchange.options)["quantise"]), residual)
    across = across_of(exchange.options)
    if across is None:
        return scheme_named(exchange.scheme, residual, exchange.options)
    return scheme_over_racks(exchange.scheme, across, racks, rank, residual, exchange.options)


def scheme_over_racks(
    inside: str, across: str, racks: Sequence[int], rank: int, residual: Residual, options: Options = ()
) -> Scheme:
    """A fresh scheme for ranks in these racks (their numbers, from 0 on), with a codec a level.

    ``options`` are those of the scheme inside. It is flat where there is one level only: one rack, or a rack a rank.
    Raises JobError for a codec that is not built.
    """
    if across not in CODECS:
        raise JobError(f"racks exchange sums in no format {across!r}; use one of {', '.join(CODECS)}")
    if max(racks) == 0:
        return scheme_named(inside, residual, options)
    if max(racks) == len(racks) - 1:
        return scheme_named(across, residual)
    codec, back = _inside(inside, dict(filled(inside, dict(options))), len(racks))
    return Hierarchical(codec, CODECS[across], seating(racks, rank), residual, back)


def _inside(name: str, options: Mapping[str, int | float | str], num_ranks: int) -> tuple[Codec, Codec]:
    """The codecs of what ranks give to their rack's owners, and of what these give back."""
    if name == "topk":
        fraction, codec = float(options["fraction"]), CODECS[str(options["quantise"])]
        return Sparse(fraction, codec), sparse_sums(fraction, num_ranks, codec)
    if name not in INSIDE:
        raise JobError(f"no sums over racks are made of {name!r}; use one of {', '.join((*INSIDE, 'topk'))}")
    return INSIDE[name], INSIDE[name]
