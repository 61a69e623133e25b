"""How gradients are to travel, as a job's spec says it: every refusal with its pointer and what to give instead."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workers.test_spec import accepted, refused


def lossy(scheme: str, **options: Any) -> dict[str, Any]:
    return {"communication": {"scheme": scheme, "options": options, "loss_class": "lossy"}}


def test_options_of_a_scheme_may_stand_beside_it() -> None:
    beside = accepted(communication={"scheme": "int8", "across": "int4", "options": {"bucket_mib": 4}})
    assert (
        beside.exchange
        == accepted(communication={"scheme": "int8", "options": {"across": "int4", "bucket_mib": 4}}).exchange
    )


def test_a_scheme_with_its_options_is_taken_as_it_is() -> None:
    given = {"scheme": "topk", "fraction": 0.01, "quantise": "int8", "across": "int4"}
    asked = accepted(communication=given).exchange
    assert (asked.scheme, asked.loss_class) == ("topk", "lossy")
    assert asked.options == {"fraction": 0.01, "quantise": "int8", "across": "int4"}
    assert accepted(communication={"scheme": "bf16"}).exchange.loss_class == "near_lossless"


@pytest.mark.parametrize(
    ("changed", "pointer", "told"),
    [
        ({"communication": "gzip"}, "/communication", "'local_steps' or a mapping (seen: 'gzip')"),
        (
            {"communication": {"scheme": "int4", "loss_class": "lossless"}},
            "/communication/loss_class",
            "lossless allows none and auto, and the scheme is int4; use near_lossless, or scheme none",
        ),
        (
            {"communication": "int4", "batch": {"adapt": "goodput"}},
            "/communication",
            "goodput needs the gradient noise scale, which int4 does not let be measured; use int8 there",
        ),
        (
            {"communication": "int4", "batch": {"lr_rule": "adascale"}},
            "/communication",
            "adascale needs the gradient noise scale, which int4 does not let be measured; use int8 there",
        ),
        (
            {"communication": "topk", "batch": {"adapt": "goodput"}},
            "/communication",
            "goodput needs the gradient noise scale, which topk does not let be measured; use int8 there",
        ),
        (
            {"communication": {"scheme": "topk", "loss_class": "near_lossless"}},
            "/communication/loss_class",
            "near_lossless does not allow topk, which a job may pay for in loss; use loss_class: lossy",
        ),
        (
            {"communication": {"scheme": "two_four", "loss_class": "lossless"}},
            "/communication/loss_class",
            "lossless does not allow two_four, which a job may pay for in loss; use loss_class: lossy",
        ),
        (
            {"communication": {"scheme": "topk", "fraction": 0.6, "loss_class": "lossy"}},
            "/communication/fraction",
            "less than or equal to 0.5 (seen: 0.6)",
        ),
        (
            {"communication": {"scheme": "topk", "fraction": 0.1, "options": {"fraction": 0.1}, "loss_class": "lossy"}},
            "/communication",
            "has fraction beside the scheme and among its options; leave one of both out",
        ),
        (
            lossy("powersgd", across="int4"),
            "/communication/options/across",
            "powersgd sums no shards, which racks exchange; use topk or bf16 with across: int4, or leave across out",
        ),
        (
            lossy("topk", across="int4", momentum=0.9),
            "/communication/options/momentum",
            "cannot be had with across: a rack's sums have no velocity; leave one of both out",
        ),
        (
            lossy("topk", across="int4", warm_up=9),
            "/communication/options/warm_up",
            "cannot be had with across: what owners of a shard send has one size; leave one of both out",
        ),
        (lossy("topk", fracton=0.1), "/communication/options/fracton", "did you mean 'fraction'?"),
        ({"communication": {"scheme": "topk", "fracton": 0.1}}, "/communication/fracton", "did you mean 'fraction'?"),
        (
            {"communication": {"scheme": "powersgd", "a/b": 2}},
            "/communication/a~1b",
            "unknown key 'a/b'; known here: bucket_mib, dense_first, rank",
        ),
        ({"communication": {"scheme": "auto", "fracton": 0.1}}, "/communication/fracton", "auto takes no options"),
        (
            {"communication": {"scheme": "int8", "los_class": "lossy"}},
            "/communication/los_class",
            "unknown key 'los_class'; did you mean 'loss_class'?",
        ),
        (lossy("topk", fraction=0), "/communication/options/fraction", "must be greater than 0 (seen: 0)"),
        (lossy("topk", fraction=0.6), "/communication/options/fraction", "less than or equal to 0.5 (seen: 0.6)"),
        (lossy("topk", fraction="1%"), "/communication/options/fraction", "must be a number (seen: '1%')"),
        (lossy("topk", momentum=1), "/communication/options/momentum", "must be less than 1 (seen: 1)"),
        (
            {**lossy("topk", momentum=0.9), "optimizer": {"clip_norm": 1.0}},
            "/optimizer/clip_norm",
            "1 clips what all ranks sent, which by communication.options.momentum is momentum; leave one of both out",
        ),
        (
            lossy("topk", warm_up=100, fraction=0.25),
            "/communication/options/warm_up",
            "begins with a quarter of the gradients, and fraction is 0.25; leave it out or use less than 0.25",
        ),
        (lossy("topk", warm_up=0), "/communication/options/warm_up", "greater than or equal to 1 (seen: 0)"),
        (lossy("topk", quantise="int2"), "/communication/options/quantise", "must be 'none' or 'int8' (seen: 'int2')"),
        (lossy("two_four", bucket_mib=0), "/communication/options/bucket_mib", "greater than or equal to 1 (seen: 0)"),
        (lossy("none", bucket_mib=2.5), "/communication/options/bucket_mib", "must be a whole number (seen: 2.5)"),
        (lossy("local_steps", steps=0), "/communication/options/steps", "greater than or equal to 1 (seen: 0)"),
        (lossy("local_steps", outer_momentum=1), "/communication/options/outer_momentum", "less than 1 (seen: 1)"),
        (
            lossy("local_steps", across="int4"),
            "/communication/options/across",
            "use topk or bf16 with across: int4, or leave across out",
        ),
        (lossy("powersgd", rank=65), "/communication/options/rank", "less than or equal to 64 (seen: 65)"),
        (lossy("powersgd", rank=0.5), "/communication/options/rank", "must be a whole number (seen: 0.5)"),
        (
            {"communication": {"scheme": "two_four", "options": {"a/b": 1}, "loss_class": "lossy"}},
            "/communication/options/a~1b",
            "unknown key 'a/b'; known here: across, bucket_mib, dense_first",
        ),
        (
            {"communication": {"scheme": "int8", "across": "int4", "dense_first": 2}},
            "/communication/dense_first",
            "cannot be had with across: racks exchange sums, in one format; leave one of both out",
        ),
        (
            lossy("topk", momentum=0.9, dense_first=1),
            "/communication/options/dense_first",
            "cannot be had with momentum: the first buckets would have none; leave one of both out",
        ),
        (lossy("int4", dense_first=0), "/communication/options/dense_first", "greater than or equal to 1 (seen: 0)"),
        (
            {"communication": {"scheme": "none", "dense_first": 2}},
            "/communication/dense_first",
            "is an option of topk, powersgd, bf16 and others, and the scheme is none; leave it out; known here: "
            "across, bucket_mib (seen: 2)",
        ),
        (
            {"communication": {"scheme": "bf16", "options": {"across": "int5"}}},
            "/communication/options/across",
            "must be 'none', 'bf16', 'fp16', 'int8' or 'int4' (seen: 'int5')",
        ),
        (
            {"communication": {"scheme": "bf16", "options": {"across": ["int4"]}}},
            "/communication/options/across",
            "must be 'none', 'bf16', 'fp16', 'int8' or 'int4'",
        ),
        (
            {"communication": {"scheme": "auto", "options": {"across": "int4"}}},
            "/communication/options/across",
            "auto takes no options; leave it out, or name the scheme that is to have it (seen: 'int4')",
        ),
        *(
            (
                {"communication": {"scheme": "powersgd", "across": across}},
                "/communication/across",
                "powersgd sums no shards, which racks exchange; use topk or bf16 with across: int4, or leave across "
                f"out (seen: {across!r})",
            )
            for across in ("int4", "powersgd", 5)
        ),
        *(
            (
                {"communication": {"scheme": "int8", "across": across}},
                "/communication/across",
                f"must be 'none', 'bf16', 'fp16', 'int8' or 'int4' (seen: {across!r})",
            )
            for across in ("powersgd", "topk", "auto", "local_steps")
        ),
        (
            {"communication": {"scheme": "int8", "across": "int4", "dense_first": 2}},
            "/communication/dense_first",
            "leave one of both out (seen: 2)",
        ),
        (
            {"communication": {"scheme": "local_steps", "bucket_mib": 4}},
            "/communication/bucket_mib",
            "is an option of topk, powersgd, none and others, and the scheme is local_steps; leave it out; known here: "
            "outer_lr, outer_momentum, quantise, steps (seen: 4)",
        ),
        (
            {"communication": {"scheme": "local_steps", "quantise": "none", "fraction": 0.1}},
            "/communication/fraction",
            "is an option of topk, and the scheme is local_steps; leave it out",
        ),
        (
            {"communication": {"scheme": "int8", "quantise": "int8"}},
            "/communication/quantise",
            "is an option of topk and local_steps, and the scheme is int8; leave it out; known here: across, ",
        ),
        (
            {"communication": {"scheme": "topk", "rank": 4}},
            "/communication/rank",
            "is an option of powersgd, and the scheme is topk; leave it out; known here: across, bucket_mib, ",
        ),
        (
            {"communication": {"scheme": "none", "options": {"across": "int4"}, "loss_class": "lossless"}},
            "/communication/options/across",
            "lossless allows none, and across is 'int4'; use near_lossless, or across: none",
        ),
        (
            {"communication": {"scheme": "none", "options": {"across": "int4"}}, "batch": {"adapt": "goodput"}},
            "/communication",
            "which int4 does not let be measured; use int8 there",
        ),
        ({"communication": {"scheme": "gzip"}}, "/communication/scheme", "must be 'auto', 'none', 'bf16', 'fp16',"),
    ],
)
def test_a_wrong_exchange_is_told_with_what_to_give(changed: dict[str, Any], pointer: str, told: str) -> None:
    assert told in refused(**changed)[pointer]


@pytest.mark.parametrize(
    ("given", "pointer", "meant"),
    [
        ("INT4", "/communication", "int4"),
        ("BF16", "/communication", "bf16"),
        ("AUTO", "/communication", "auto"),
        ({"scheme": "TopK"}, "/communication/scheme", "topk"),
        ({"scheme": "INT4"}, "/communication/scheme", "int4"),
        ({"scheme": "int4", "across": "BF16"}, "/communication/across", "bf16"),
        ({"scheme": "topk", "quantise": "INT8"}, "/communication/quantise", "int8"),
        ({"scheme": "topk", "FRACTION": 0.1}, "/communication/FRACTION", "fraction"),
        ({"scheme": "topk", "LOSS_CLASS": "lossy"}, "/communication/LOSS_CLASS", "loss_class"),
    ],
)
def test_capitals_are_told_what_they_were_meant_to_be(given: object, pointer: str, meant: str) -> None:
    assert refused(communication=given)[pointer].endswith(f"did you mean {meant!r}?")


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        ("fp32", "/communication"),
        ("FP32", "/communication"),
        ("float32", "/communication"),
        ({"scheme": "int4", "across": "fp32"}, "/communication/across"),
    ],
)
def test_gradients_as_they_are_are_called_none(given: object, pointer: str) -> None:
    assert refused(communication=given)[pointer].endswith("did you mean 'none'?")


@pytest.mark.parametrize(
    ("scheme", "option", "value", "told"),
    [
        ("topk", "fraction", 1, "must be less than or equal to 0.5 (seen: 1)"),
        ("topk", "fraction", float("nan"), "must be a finite number (seen: nan)"),
        ("topk", "fraction", "0.01", "must be a number (seen: '0.01'); a number is written without quotes"),
        ("topk", "fraction", True, "must be a number (seen: True)"),
        ("powersgd", "rank", 0, "must be greater than or equal to 1 (seen: 0)"),
        ("powersgd", "rank", 1e9, "must be less than or equal to 64 (seen: 1000000000)"),
        ("powersgd", "rank", True, "must be a whole number (seen: True)"),
        ("int8", "bucket_mib", -1, "must be greater than or equal to 1 (seen: -1)"),
        ("int8", "bucket_mib", 1e9, "must be less than or equal to 1024 (seen: 1000000000)"),
        ("int8", "bucket_mib", float("inf"), "must be a finite number (seen: inf)"),
        ("int8", "dense_first", 1e9, "must be less than or equal to 10000 (seen: 1000000000)"),
        ("topk", "warm_up", 2.5, "must be a whole number (seen: 2.5)"),
        ("local_steps", "outer_lr", 0, "must be greater than 0 (seen: 0)"),
    ],
)
def test_a_value_that_no_scheme_can_have_is_refused_where_it_stands(
    scheme: str, option: str, value: object, told: str
) -> None:
    beside, inside = {"scheme": scheme, option: value}, {"scheme": scheme, "options": {option: value}}
    assert refused(communication=beside) == {f"/communication/{option}": told}
    assert refused(communication=inside) == {f"/communication/options/{option}": told}
