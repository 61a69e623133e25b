"""The schemes that are built, by the name that a plan has for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from workers.errors import JobError
from workers.training.exchange.codecs import Bf16, Fp16, Int4, Int8
from workers.training.exchange.compressed import Compressed
from workers.training.exchange.residual import Residual
from workers.training.exchange.schemes import Dense, Scheme

SCHEMES: Mapping[str, Callable[[Residual], Scheme]] = {
    "none": Dense,
    **{codec.name: partial(Compressed, codec) for codec in (Bf16(), Fp16(), Int8(), Int4())},
}


def scheme_named(name: str, residual: Residual) -> Scheme:
    """A fresh scheme that keeps what it leaves out in ``residual``. Raises JobError for one that is not built."""
    if name not in SCHEMES:
        raise JobError(f"the exchange scheme {name!r} is not built; use one of {', '.join(SCHEMES)}")
    return SCHEMES[name](residual)
