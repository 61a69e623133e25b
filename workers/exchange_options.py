"""What each exchange scheme can be told besides its name, with every default and every refusal.

A scheme without a model here takes no options. A plan carries options filled in and ordered, so that two plans
ask for the same exchange exactly where they are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, ValidationError

from workers.errors import FieldProblem
from workers.problems import pointer_part, problems_of
from workers.spec_parts import WHOLE, SpecPart

Options: TypeAlias = tuple[tuple[str, int | float | str], ...]

LOSSY = frozenset(("two_four", "topk", "powersgd", "local_steps"))
"""Schemes that a job may pay for in loss; ``loss_class: lossy`` allows them."""

BLURRING = LOSSY | {"int4"}
"""Schemes whose gradients are too rough for the gradient noise scale."""


SMALL_GRADIENT = 2**18
"""Gradients of fewer values travel as they are where nobody asked for more: what that takes is no matter of bytes."""

LEVELS = ("none across none", "bf16 across bf16", "bf16 across int8", "bf16 across int4")
"""What gradients may travel as over racks where nobody asked for more, that which loses least first."""

BUCKET_MIB = 25
"""Gradients leave for other ranks when so many mebibytes of them are ready, where nobody asks for another size."""

SMALLER_BUCKETS_MIB = (4, 1)
"""What else may be chosen: they leave sooner, and a link that is quick to begin carries more of them unseen."""

NAMED = ("across", "bucket_mib")
"""The options that an exchange's name tells of."""

_ACROSS, _IN_BUCKETS, _MIB = " across ", " in buckets of ", " MiB"


class BucketOptions(SpecPart):
    """``bucket_mib`` is how many mebibytes of gradients leave together, more where a parameter is larger.

    The first leave when there are 4 at most.
    """

    bucket_mib: Annotated[int, Field(ge=1, le=1024), WHOLE] | None = None


class TopkOptions(BucketOptions):
    """``fraction`` of a bucket's gradients are sent; ``quantise`` is the format of their values."""

    fraction: Annotated[float, Field(gt=0, le=0.5)] = 0.01
    quantise: Literal["none", "int8"] = "int8"


class PowerSgdOptions(BucketOptions):
    """``rank`` is that of the two factors which stand for a matrix."""

    rank: Annotated[int, Field(ge=1, le=64), WHOLE] = 4


class LocalStepsOptions(SpecPart):
    """Every worker takes so many ``steps`` of its own; then what they changed is exchanged, in the format ``quantise``.

    ``outer_lr`` and ``outer_momentum`` are those of the step that all take together, which is as they stand the mean
    of what all came to (Stich 2019, arXiv 1805.09767); DiLoCo has 0.7 and 0.9 (arXiv 2311.08105, algorithm 1).
    """

    steps: Annotated[int, Field(ge=1, le=1000), WHOLE] = 25
    outer_lr: Annotated[float, Field(gt=0, le=2)] = 1.0
    outer_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    quantise: Literal["none", "bf16", "int8", "int4"] = "int4"


class RackOptions(BucketOptions):
    """``across`` is the format of what goes from rack to rack, where racks are to be found; the scheme is that inside.

    Racks are found by measuring when a group begins; of one level only that level's format is used.
    """

    across: Literal["none", "bf16", "fp16", "int8", "int4"] | None = None


_MODELS: Mapping[str, type[SpecPart]] = {
    "topk": TopkOptions,
    "powersgd": PowerSgdOptions,
    "local_steps": LocalStepsOptions,
    "two_four": BucketOptions,
    **dict.fromkeys(("none", "bf16", "fp16", "int8", "int4"), RackOptions),
}


def filled(scheme: str, given: Mapping[str, object]) -> Options:
    """What was given and the scheme's defaults for the rest, by name; ``given`` must have no problems."""
    model = _MODELS.get(scheme)
    if model is None:
        return ()
    return tuple(sorted(model.model_validate(dict(given)).model_dump(exclude_none=True).items()))


def across_of(options: Options) -> str | None:
    """The format between racks; None where racks are not to be looked for."""
    across = dict(options).get("across")
    return across if isinstance(across, str) else None


def bucket_mib_of(options: Options) -> int:
    """How many mebibytes of gradients leave together."""
    return int(dict(options).get("bucket_mib", BUCKET_MIB))


def name_of(scheme: str, options: Options) -> str:
    """What an exchange is called: ``SCHEME[ across FORMAT][ in buckets of N MiB]``, without what is usual."""
    across, bucket_mib = across_of(options), bucket_mib_of(options)
    return in_buckets(scheme if across is None else f"{scheme}{_ACROSS}{across}", bucket_mib)


def in_buckets(formats: str, bucket_mib: int) -> str:
    """The name of an exchange in such formats, by such buckets."""
    return formats if bucket_mib == BUCKET_MIB else f"{formats}{_IN_BUCKETS}{bucket_mib}{_MIB}"


def bucketed(name: str) -> tuple[str, int]:
    """What such a name has of formats, and the mebibytes of its buckets."""
    formats, _, bucket_mib = name.removesuffix(_MIB).partition(_IN_BUCKETS)
    return formats, int(bucket_mib or BUCKET_MIB)


def formats_of(name: str) -> tuple[str, str | None]:
    """The scheme that such a name begins with, and the format between racks."""
    scheme, _, across = bucketed(name)[0].partition(_ACROSS)
    return scheme, across or None


def options_of(name: str) -> Options:
    """The options that such a name tells of."""
    across, bucket_mib = formats_of(name)[1], bucketed(name)[1]
    told = {"across": across, "bucket_mib": None if bucket_mib == BUCKET_MIB else bucket_mib}
    return tuple((key, value) for key, value in told.items() if value is not None)


def option_problems(scheme: str, given: Mapping[str, object], pointer: str) -> list[FieldProblem]:
    """What is wrong with a scheme's options, which stand at ``pointer`` of the document."""
    model = _MODELS.get(scheme)
    if model is None:
        told = f"{scheme} takes no options; leave it out"
        return [FieldProblem(f"{pointer}/{pointer_part(name)}", told) for name in given]
    try:
        model.model_validate(dict(given))
    except ValidationError as error:
        found = problems_of(error, given, model, {}, hidden="")
        return [FieldProblem(pointer + problem.pointer, problem.detail) for problem in found]
    return []
