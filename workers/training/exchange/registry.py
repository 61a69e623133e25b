"""The schemes that are built, by the name that a plan has for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from workers.errors import JobError
from workers.exchange_options import Options, filled
from workers.training.exchange.codecs import Bf16, Fp16, Int4, Int8
from workers.training.exchange.compressed import Compressed
from workers.training.exchange.powersgd import PowerSgd
from workers.training.exchange.residual import Residual
from workers.training.exchange.schemes import Dense, Scheme
from workers.training.exchange.topk import TopK
from workers.training.exchange.two_four import TwoFour

SCHEMES: Mapping[str, Callable[..., Scheme]] = {
    "none": Dense,
    **{codec.name: partial(Compressed, codec) for codec in (Bf16(), Fp16(), Int8(), Int4(), TwoFour())},
    "topk": TopK,
    "powersgd": PowerSgd,
}
"""Each takes a residual and, by name, the options that its scheme has."""


def scheme_named(name: str, residual: Residual, options: Options = ()) -> Scheme:
    """A fresh scheme that keeps what it leaves out in ``residual``; options that are not given have their defaults.

    Raises JobError for one that is not built.
    """
    if name not in SCHEMES:
        raise JobError(f"the exchange scheme {name!r} is not built; use one of {', '.join(SCHEMES)}")
    return SCHEMES[name](residual, **dict(filled(name, dict(options))))
