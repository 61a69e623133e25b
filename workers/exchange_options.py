"""What each exchange scheme can be told besides its name, with every default and every refusal.

A scheme without a model here takes no options. A plan carries options filled in and ordered, so that two plans
ask for the same exchange exactly where they are equal.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, JsonValue, ValidationError, model_validator

from workers.errors import FieldProblem
from workers.problems import nearest, pointer_part, problems_of
from workers.spec_parts import WHOLE, SchemeName, SpecPart

Options: TypeAlias = tuple[tuple[str, int | float | str], ...]

LOSSY = frozenset(("two_four", "topk", "powersgd", "local_steps"))
"""Schemes that a job may pay for in loss; ``loss_class: lossy`` allows them."""

BLURRING = LOSSY | {"int4"}
"""Schemes whose gradients are too rough for the gradient noise scale."""


SMALL_GRADIENT = 2**18
"""Links are not measured for gradients of fewer values where nobody asked for racks: it takes longer than it spares."""

LEVELS = (
    "none across none",
    "bf16 across bf16",
    "bf16 across int8",
    "int8 across int8",
    "bf16 across int4",
    "int8 across int4",
    "int4 across int4",
)
"""What gradients may travel as over racks where nobody asked for more, that which loses least first.

Inside no format is shorter than across: where links are slower there, ranks sit in no racks.
"""

BUCKET_MIB = 25
"""Gradients leave for other ranks when so many mebibytes of them are ready, where nobody asks for another size."""

SMALLER_BUCKETS_MIB = (4, 1)
"""What else may be chosen: they leave sooner, and a link that is quick to begin carries more of them unseen."""

_APART = {
    ("dense_first", "across"): "racks exchange sums, in one format",
    ("dense_first", "momentum"): "the first buckets would have none",
    ("momentum", "across"): "a rack's sums have no velocity",
    ("warm_up", "across"): "what owners of a shard send has one size",
}
"""Options of which one at most can be had, and why."""

_NOT_ACROSS = "{} sums no shards, which racks exchange; use topk or bf16 with across: int4, or leave across out"

NAMED = ("across", "bucket_mib", "dense_first")
"""The options that an exchange's name tells of."""

_ACROSS, _AFTER, _DENSE, _IN_BUCKETS, _MIB = " across ", " after ", " dense", " in buckets of ", " MiB"


class BucketOptions(SpecPart):
    """``bucket_mib`` is how many mebibytes of gradients leave together, more where a parameter is larger.

    The first leave when there are 4 at most.
    """

    bucket_mib: Annotated[int, Field(ge=1, le=1024), WHOLE] | None = None


class DenseFirstOptions(BucketOptions):
    """``dense_first`` buckets, those that leave first, travel as they are: backward may hide whatever they carry."""

    dense_first: Annotated[int, Field(ge=1, le=10_000), WHOLE] | None = None


class PowerSgdOptions(DenseFirstOptions):
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


class CodecOptions(RackOptions, DenseFirstOptions):
    """Either ``across`` or ``dense_first``: between racks no link carries gradients as they are for nothing."""


class TopkOptions(CodecOptions):
    """``fraction`` of a bucket's gradients are sent; ``quantise`` is the format of their values.

    ``momentum`` is had by each rank before it chooses, instead of by SGD (momentum correction); in the job's first
    ``warm_up`` steps what is sent goes from a quarter down to ``fraction``, in parts (arXiv 1712.01887). With
    ``across`` each rank sends so much of a shard to its rack's owner of it, and the sums of it come back so.
    """

    fraction: Annotated[float, Field(gt=0, le=0.5)] = 0.01
    quantise: Literal["none", "int8"] = "int8"
    momentum: Annotated[float, Field(gt=0, lt=1)] | None = None
    warm_up: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] | None = None


class ExchangeSpec(SpecPart):
    """How gradients travel, spelled out.

    The scheme's options may also be written beside it, as in ``{scheme: topk, fraction: 0.05}``. Where
    no ``loss_class`` is given, who names a lossy scheme allows it.
    """

    scheme: SchemeName
    options: dict[str, JsonValue] = Field(default_factory=dict)
    loss_class: Literal["lossless", "near_lossless", "lossy"] = "near_lossless"

    @model_validator(mode="before")
    @classmethod
    def _spelled_out(cls, value: object) -> object:
        options = value.get("options", {}) if isinstance(value, Mapping) else None
        if not isinstance(value, Mapping) or not isinstance(options, Mapping):
            return value
        beside = {key: value[key] for key in value if _is_option(key)}
        for name in sorted(beside.keys() & options.keys()):
            raise ValueError(f"has {name:.80} beside the scheme and among its options; leave one of both out")
        allowed = {"loss_class": "lossy"} if value.get("scheme") in tuple(LOSSY) else {}
        rest = {key: value[key] for key in value if key not in beside}
        return {**allowed, **rest, **({"options": {**options, **beside}} if beside else {})}


@functools.cache
def named(scheme: SchemeName) -> ExchangeSpec:
    """The exchange of a job that writes its scheme's name alone; controllers ask for it at each turn."""
    return ExchangeSpec(scheme=scheme)


def _is_option(key: object) -> bool:
    """Whether a key beside a scheme counts as an option, right or wrong: unless it is a field, or most like one."""
    if not isinstance(key, str) or key in ExchangeSpec.model_fields:
        return False
    return key in OPTION_NAMES or nearest(key, (*ExchangeSpec.model_fields, *OPTION_NAMES)) in (None, *OPTION_NAMES)


def as_written(problem: FieldProblem, document: Mapping[str, object]) -> FieldProblem:
    """A problem of an option that stands beside the scheme, at the place where it stands in the job spec."""
    name, given = problem.pointer.removeprefix(_OPTIONS_AT), document.get("communication")
    is_beside = name != problem.pointer and isinstance(given, Mapping) and name in map(pointer_part, map(str, given))
    return replace(problem, pointer=f"/communication/{name}") if is_beside else problem


_OPTIONS_AT = "/communication/options/"
_MODELS: Mapping[str, type[SpecPart]] = {
    "topk": TopkOptions,
    "powersgd": PowerSgdOptions,
    "local_steps": LocalStepsOptions,
    "none": RackOptions,
    **dict.fromkeys(("bf16", "fp16", "int8", "int4", "two_four"), CodecOptions),
}
OPTION_NAMES = frozenset(name for model in _MODELS.values() for name in model.model_fields)
"""What any scheme can be told besides its name."""


def schemes_with(option: str) -> tuple[str, ...]:
    """The schemes that can be told this."""
    return tuple(scheme for scheme, model in _MODELS.items() if option in model.model_fields)


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


def dense_first_of(options: Options) -> int:
    """How many buckets travel as they are before the others travel by the scheme."""
    return int(dict(options).get("dense_first", 0))


def name_of(scheme: str, options: Options) -> str:
    """What an exchange is called, without what is usual.

    ``SCHEME[ across FORMAT][ after N dense][ in buckets of N MiB]``.
    """
    across, bucket_mib = across_of(options), bucket_mib_of(options)
    return in_buckets(scheme if across is None else f"{scheme}{_ACROSS}{across}", bucket_mib, dense_first_of(options))


def in_buckets(formats: str, bucket_mib: int, dense_first: int = 0) -> str:
    """The name of an exchange in such formats, by such buckets, of which the first go as they are."""
    mixed = f"{formats}{_AFTER}{dense_first}{_DENSE}" if dense_first else formats
    return mixed if bucket_mib == BUCKET_MIB else f"{mixed}{_IN_BUCKETS}{bucket_mib}{_MIB}"


def bucketed(name: str) -> tuple[str, int, int]:
    """What such a name has of formats, the mebibytes of its buckets, and how many of those go as they are first."""
    mixed, _, bucket_mib = name.removesuffix(_MIB).partition(_IN_BUCKETS)
    formats, _, dense_first = mixed.removesuffix(_DENSE).partition(_AFTER)
    return formats, int(bucket_mib or BUCKET_MIB), int(dense_first or 0)


def formats_of(name: str) -> tuple[str, str | None]:
    """The scheme that such a name begins with, and the format between racks."""
    scheme, _, across = bucketed(name)[0].partition(_ACROSS)
    return scheme, across or None


def used_over(name: str, racks: Sequence[int]) -> str:
    """What such an exchange comes to among ranks in these racks (their numbers): of one level only its own format.

    Of one rack that is the scheme; where each rank is a rack, all links are ones between racks.
    """
    (scheme, across), (_, bucket_mib, dense_first) = formats_of(name), bucketed(name)
    if across is None or 0 < max(racks) < len(racks) - 1:
        return name
    return in_buckets(across if max(racks) > 0 else scheme, bucket_mib, dense_first)


def loss_class_of(name: str) -> str:
    """How much such an exchange may cost in loss: lossless, near_lossless or lossy."""
    formats = {*formats_of(name)} - {None}
    if formats & LOSSY:
        return "lossy"
    return "lossless" if formats == {"none"} else "near_lossless"


def options_of(name: str) -> Options:
    """The options that such a name tells of."""
    across, (_, bucket_mib, dense_first) = formats_of(name)[1], bucketed(name)
    told = {
        "across": across,
        "bucket_mib": None if bucket_mib == BUCKET_MIB else bucket_mib,
        "dense_first": dense_first or None,
    }
    return tuple((key, value) for key, value in told.items() if value is not None)


def option_problems(scheme: str, given: Mapping[str, object], pointer: str) -> list[FieldProblem]:
    """What is wrong with a scheme's options, which stand at ``pointer`` of the document."""
    model = _MODELS.get(scheme)
    if model is None:
        told = f"{scheme} takes no options; leave it out, or name the scheme that is to have it"
        return [FieldProblem(f"{pointer}/{pointer_part(name)}", told + _seen(given[name])) for name in given]
    try:
        model.model_validate(dict(given))
    except ValidationError as error:
        found = {problem.pointer: problem.detail for problem in problems_of(error, given, model, {}, hidden="")}
        found |= {f"/{name}": _of_others(scheme, name, given[name]) for name in given if _is_of_others(scheme, name)}
        return [FieldProblem(pointer + place, detail) for place, detail in found.items()]
    told = "cannot be had with {}: {}; leave one of both out{}"
    return [
        FieldProblem(f"{pointer}/{name}", told.format(other, why, _seen(given[name])))
        for (name, other), why in _APART.items()
        if given.get(name) is not None and given.get(other) is not None
    ]


def _is_of_others(scheme: str, name: str) -> bool:
    return name in OPTION_NAMES and name not in _MODELS[scheme].model_fields


def _of_others(scheme: str, name: str, value: object) -> str:
    """What to tell of an option that other schemes have."""
    if name == "across":
        return _NOT_ACROSS.format(scheme) + _seen(value)
    having = [other for other, model in _MODELS.items() if name in model.model_fields]
    whose = " and ".join(having) if len(having) < 3 else f"{', '.join(having[:3])} and others"
    known = ", ".join(sorted(_MODELS[scheme].model_fields))
    return f"is an option of {whose}, and the scheme is {scheme}; leave it out; known here: {known}{_seen(value)}"


def _seen(value: object) -> str:
    return f" (seen: {value!r:.80})"
