"""The job spec: defaults, every refusal with its pointer, and nothing that is accepted and ignored."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.errors import SpecError
from workers.lr import Decay, LrRule
from workers.spec import JobSpec, parse_job_spec
from workers.spec_parts import Resources

BASE: dict[str, Any] = {"name": "digits", "entrypoint": "workers.recipes.digits:build", "steps": 500}


def refused(**changed: Any) -> dict[str, str]:
    """Pointer -> detail of each problem of the base document with some keys changed."""
    with pytest.raises(SpecError) as caught:
        parse_job_spec({**BASE, **changed})
    assert caught.value.code == "INVALID"
    assert str(caught.value)
    return {p.pointer: p.detail for p in caught.value.problems}


def not_available(**changed: Any) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        parse_job_spec({**BASE, **changed})
    assert caught.value.code == "NOT_AVAILABLE"
    return {p.pointer: p.detail for p in caught.value.problems}


def accepted(**changed: Any) -> JobSpec:
    return parse_job_spec({**BASE, **changed})


def test_the_defaults_are_those_of_the_contract() -> None:
    spec = accepted()
    assert (spec.workers.min, spec.workers.max, spec.seed, spec.priority, spec.queue) == (1, 1, 0, 0, "default")
    assert (spec.resources.cpus, spec.resources.gpus, spec.resources.memory_bytes) == (1, 0, None)
    assert (spec.batch.global_size, spec.batch.micro_size, spec.batch.lr_rule) == (128, "auto", LrRule.SQRT)
    assert (spec.optimizer.lr, spec.base_batch, spec.optimizer.clip_norm) == (1e-3, 128, None)
    assert (spec.lr_schedule.warmup_fraction, spec.lr_schedule.decay) == (0.05, Decay.COSINE)
    assert (spec.precision, spec.communication, spec.compile) == ("auto", "auto", False)
    assert (spec.checkpoint.every_steps, spec.checkpoint.keep, spec.eval_every_steps) == (100, 2, 100)
    assert spec.retry.max_failures == 3


def test_a_spec_survives_its_own_json_and_pickle() -> None:
    spec = accepted(env={"A": {"secret": "B"}, "C": "d"}, workers={"min": 1, "max": 4}, batch={"micro_size": 8})
    assert parse_job_spec(spec.model_dump(mode="json")) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize(
    ("given", "expected"), [(3, (3, 3)), ({"min": 2}, (2, 2)), ({"max": 4}, (1, 4)), ({"min": 2, "max": 4}, (2, 4))]
)
def test_the_range_of_workers(given: Any, expected: tuple[int, int]) -> None:
    workers = accepted(workers=given).workers
    assert (workers.min, workers.max) == expected


@pytest.mark.parametrize(
    ("length", "expected"),
    [({"steps": 10}, 1280), ({"samples": 77}, 77), ({"epochs": 1.5}, 1500), ({"epochs": 1e-9}, 1)],
)
def test_the_length_in_samples(length: dict[str, float], expected: int) -> None:
    document = {k: v for k, v in BASE.items() if k != "steps"}
    assert parse_job_spec({**document, **length}).total_samples(1000) == expected


@pytest.mark.parametrize(
    ("changed", "pointer", "told"),
    [
        ({"steps": "5"}, "/steps", "must be a whole number (seen: '5'); a number is written without quotes"),
        ({"optimizer": {"lr": "1e-3"}}, "/optimizer/lr", "must be a number (seen: '1e-3'); a number is written"),
        ({"workers": "3"}, "/workers", "a mapping with min and max (seen: '3'); a number is written without quotes"),
        ({"workers": {"min": "3"}}, "/workers/min", "must be a whole number (seen: '3')"),
        ({"batch": {"micro_size": "8"}}, "/batch/micro_size", "must be 'auto' or a whole number (seen: '8'); a number"),
        ({"steps": "many"}, "/steps", "must be a whole number (seen: 'many')"),
        ({"steps": 2.5}, "/steps", "must be a whole number (seen: 2.5)"),
        ({"compile": "true"}, "/compile", "must be true or false (seen: 'true')"),
        ({"compile": 0}, "/compile", "must be true or false (seen: 0)"),
        ({"seed": True}, "/seed", "must be a whole number (seen: True)"),
        ({"optimizer": {"lr": True}}, "/optimizer/lr", "must be a number (seen: True)"),
    ],
)
def test_nothing_is_taken_for_what_it_only_looks_like(changed: dict[str, Any], pointer: str, told: str) -> None:
    assert told in refused(**changed)[pointer]


def test_a_whole_number_may_be_written_with_a_point() -> None:
    spec = accepted(steps=5.0, workers=2.0)
    assert (spec.steps, spec.workers.max) == (5, 2)


def test_the_names_of_secrets_are_told() -> None:
    assert accepted(env={"A": {"secret": "B"}, "C": "d"}).secret_names() == {"B"}


@pytest.mark.parametrize("document", [None, "name: x", 3, [BASE]])
def test_what_is_not_a_mapping_is_refused(document: object) -> None:
    with pytest.raises(SpecError, match="a job spec is a mapping"):
        parse_job_spec(document)


def test_all_problems_are_told_at_once() -> None:
    found = refused(name=None, stepz=3, batch={"global_size": 0}, optimizer={"lr": -1})
    assert set(found) == {"/name", "/stepz", "/batch/global_size", "/optimizer/lr"}


@pytest.mark.parametrize(
    ("changed", "pointer", "told"),
    [
        ({"step": 5}, "/step", "unknown key 'step'; did you mean 'steps'?"),
        ({"zzz": 5}, "/zzz", "unknown key 'zzz'; known here: batch, bundle, checkpoint,"),
        ({"a/b~c": 5}, "/a~1b~0c", "unknown key"),
        ({"batch": {"globalsize": 5}}, "/batch/globalsize", "did you mean 'global_size'?"),
        ({"Batch": {"global_size": 5}}, "/Batch", "did you mean 'batch'?"),
        ({"STEPS": 5}, "/STEPS", "did you mean 'steps'?"),
        ({"optimizer": {"momentum": 0.9}}, "/optimizer/momentum", "known here: base_batch, clip_norm, lr"),
        ({"communication": {"schema": "none"}}, "/communication/schema", "did you mean 'scheme'?"),
        ({"env": {"A": {"secert": "B"}}}, "/env/A/secert", "did you mean 'secret'?"),
        ({"code": "./src"}, "/code", "is read by the CLI, which uploads the folder; elsewhere upload a bundle"),
        ({1: 2}, "/1", "the keys of a mapping must be texts (seen: 1)"),
    ],
)
def test_an_unknown_key_is_refused_with_a_suggestion(changed: dict[Any, Any], pointer: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_job_spec({**BASE, **changed})
    assert told in {p.pointer: p.detail for p in caught.value.problems}[pointer]


@pytest.mark.parametrize(
    ("changed", "pointer", "told"),
    [
        ({"precision": "fp99"}, "/precision", "must be 'auto', 'fp32', 'bf16' or 'fp16' or a mapping (seen: 'fp99')"),
        ({"precision": 3}, "/precision", "must be 'auto', 'fp32', 'bf16' or 'fp16' or a mapping (seen: 3)"),
        (
            {"batch": {"lr_rule": "adascale", "global_size": 64, "micro_size": 64}},
            "/batch/micro_size",
            "64 lets the one worker compute a step in one pass, which shows no gradient noise, and adascale follows "
            "that; use auto, or half of it",
        ),
        (
            {"batch": {"adapt": "goodput", "global_size": 64, "micro_size": 64}},
            "/batch/micro_size",
            "64 lets the one worker compute a step in one pass, which shows no gradient noise, and goodput "
            "follows that; use auto, or half of it",
        ),
        ({"batch": {"micro_size": "big"}}, "/batch/micro_size", "must be 'auto' or a whole number (seen: 'big')"),
        ({"batch": {"micro_size": 0}}, "/batch/micro_size", "must be greater than 0 (seen: 0)"),
        ({"batch": {"lr_rule": "cube"}}, "/batch/lr_rule", "must be 'none', 'linear', 'sqrt' or 'adascale'"),
        ({"lr_schedule": {"decay": "cos"}}, "/lr_schedule/decay", "(seen: 'cos'); did you mean 'cosine'?"),
        ({"lr_schedule": {"decay": "COSINE"}}, "/lr_schedule/decay", "(seen: 'COSINE'); did you mean 'cosine'?"),
        ({"init_from": {"job": "j", "step": "last"}}, "/init_from/step", "(seen: 'last'); did you mean 'latest'?"),
        ({"checkpoint": {"mode": "maximum"}}, "/checkpoint/mode", "must be 'max' or 'min' (seen: 'maximum')"),
        ({"workers": "many"}, "/workers", "must be a whole number from 1 to 1024, or a mapping with min and max"),
        ({"workers": 0}, "/workers", "from 1 to 1024, or a mapping with min and max (seen: 0)"),
        ({"workers": True}, "/workers", "(seen: True)"),
        ({"workers": {"min": 0}}, "/workers/min", "must be greater than or equal to 1 (seen: 0)"),
        ({"workers": {"min": 3, "max": 2}}, "/workers", "min=3 is above max=2; lower min or raise max"),
        ({"steps": True}, "/steps", "must be a whole number (seen: True)"),
        ({"steps": 1.5}, "/steps", "must be a whole number"),
        ({"steps": 10**30}, "/steps", "must be less than or equal to"),
        ({"steps": 2**53}, "/steps", "128 samples are above 9007199254740992; lower one of them"),
        ({"optimizer": {"lr": float("nan")}}, "/optimizer/lr", "must be a finite number"),
        ({"optimizer": None}, "/optimizer", "must be a mapping (seen: None)"),
        ({"name": "My_Job"}, "/name", "must be a DNS-1123 label"),
        ({"name": "a" * 64}, "/name", "at most 63 characters"),
        ({"entrypoint": "train"}, "/entrypoint", "must be module:callable, such as train:build (seen: 'train')"),
        ({"entrypoint": "train.py:build"}, "/entrypoint", "'train.py' is a file; name the module, as in 'train:build'"),
        ({"entrypoint": "train:build"}, "/bundle", "there is no bundle; upload your code"),
        ({"dependencies": ["numpy", "num py"]}, "/dependencies/1", "is not a PEP 508 requirement"),
        ({"dependencies": ["-r other.txt"]}, "/dependencies/0", "write for example 'einops>=0.8'"),
        ({"dependencies": "numpy"}, "/dependencies", "must be a list (seen: 'numpy')"),
        ({"config": [1]}, "/config", "must be a mapping"),
        ({"config": {"a": float("inf")}}, "/config/a", "must be a finite number"),
        ({"labels": {"a/b=": "c"}}, "/labels/a~1b=", "holds '=', which ends the key"),
        ({"labels": {"team": 3}}, "/labels/team", "must be a text (seen: 3)"),
        ({"resources": {"memory_bytes": "4GB"}}, "/resources/memory_bytes", "must be a whole number (seen: '4GB')"),
        ({"resources": {"memory_bytes": 10}}, "/resources/memory_bytes", "greater than or equal to 67108864"),
        ({"checkpoint": {"metric": "accuracy"}}, "/checkpoint/metric", "write 'eval.accuracy' for what `evaluate`"),
        ({"checkpoint": {"metric": "evl.accuracy"}}, "/checkpoint/metric", "write 'eval.accuracy' for what `evaluate`"),
        ({"checkpoint": {"metric": "eval."}}, "/checkpoint/metric", "write 'eval.NAME' for what `evaluate`"),
        ({"checkpoint": {"metric": "noise_scale"}}, "/checkpoint/metric", "rates no state; name eval.NAME"),
        ({"checkpoint": {"metric": "los"}}, "/checkpoint/metric", "did you mean 'loss'?"),
        (
            {"env": {"A": {"secret": "CONCERTINA_DATABASE"}}},
            "/env/A/secret",
            "CONCERTINA_DATABASE is a variable of the service's own; put the value under another name",
        ),
        ({"env": {"PYTHONPATH": "lib"}}, "/env", "PYTHONPATH would have no effect"),
        ({"epochs": 3}, "/epochs", "exactly one of steps, epochs and samples"),
        ({"steps": None}, "/steps", "given: none of them; keep one"),
        ({"batch": {"global_size": 2}, "workers": 4}, "/batch/global_size", "cannot be shared by workers.min=4"),
        (
            {"batch": {"micro_size": 256}},
            "/batch/micro_size",
            "256 is above batch.global_size=128; lower it, or use auto",
        ),
        (
            {"batch": {"max_global_size": 64, "adapt": "goodput"}},
            "/batch/max_global_size",
            "64 is below global_size=128",
        ),
        (
            {"batch": {"max_global_size": 512}},
            "/batch/max_global_size",
            "512 bounds a batch that adapts, and batch.a",
        ),
        (
            {"batch": {"micro_size": 8, "max_tokens": 4096}},
            "/batch/max_tokens",
            "4096 tokens and micro_size=8 samples both bound a forward pass; leave one of them out",
        ),
    ],
)
def test_a_wrong_value_is_told_with_what_to_give(changed: dict[str, Any], pointer: str, told: str) -> None:
    found = refused(**changed)
    assert told in found[pointer]


def test_a_union_complains_once() -> None:
    assert len(refused(precision="fp99")) == len(refused(env={"A": 3})) == len(refused(workers=0)) == 1


@pytest.mark.parametrize(
    ("env", "pointer"),
    [
        ({"A": {"secert": "hunter2"}}, "/env/A/secert"),
        ({"A": {"secret": "hunter2!"}}, "/env/A/secret"),
        ({"A": {"secret": "X", "value": "hunter2"}}, "/env/A/value"),
        ({"A": ["hunter2"]}, "/env/A"),
        ({"A": 12345678}, "/env/A"),
        ({"A": "hunter2\0"}, "/env/A"),
        ({"a-b": "hunter2"}, "/env/a-b"),
        ({"CONCERTINA_TOKEN": "hunter2"}, "/env"),
        ("hunter2", "/env"),
        ([{"A": "hunter2"}], "/env"),
    ],
)
def test_the_value_of_a_variable_is_never_shown(env: Any, pointer: str) -> None:
    found = refused(env=env)
    assert pointer in found
    assert "hunter2" not in str(found)
    assert "12345678" not in str(found)


def test_a_worker_has_a_part_of_a_gpu_that_holds_something() -> None:
    assert "must be 0, or 0.01 at least" in refused(resources={"gpus": 0.001})["/resources/gpus"]
    assert parse_job_spec({**BASE, "resources": {"gpus": 0.25}}).resources.gpus == 0.25


def test_a_worker_has_as_much_of_a_cpu_as_is_counted() -> None:
    assert refused(resources={"cpus": 1e-5, "gpus": 1, "cpus_instead": 1e-9}) == {
        "/resources/cpus": "1e-05 is too little for Ray to count; give 0.0001",
        "/resources/cpus_instead": "1e-09 is too little for Ray to count; give 0.0001",
    }
    assert parse_job_spec({**BASE, "resources": {"cpus": 1e-4}}).resources.cpus == 1e-4


def test_cpus_take_the_place_of_a_gpu_only_where_one_is_asked_for() -> None:
    resources = parse_job_spec({**BASE, "resources": {"gpus": 0.5, "cpus_instead": 4}}).resources
    assert resources.without_gpu() == Resources(cpus=4, gpus=0, cpus_instead=4)
    told = refused(resources={"cpus_instead": 4})
    assert told == {
        "/resources/cpus_instead": "4 CPUs would take the place of a GPU, and gpus=0 asks for none; set gpus, or leave "
        "cpus_instead out"
    }
    assert list(refused(resources={"gpus": 1, "cpus_instead": 0})) == ["/resources/cpus_instead"]


@pytest.mark.parametrize("name", ["str", "Secret", "[x]", "int"])
def test_a_variable_named_like_a_type_keeps_its_pointer(name: str) -> None:
    assert set(refused(env={name: 3})) == {f"/env/{name}"}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"precision": {"*": "fp32"}}, {"/precision": "a policy is not built yet; use auto, fp32, bf16 or fp16"}),
        ({"compile": True}, {"/compile": "true is not built yet; use false, or torch.compile in your entrypoint"}),
        ({"resources": {"gpus": 2}}, {"/resources/gpus": "2 is not built yet; use 1 or less, and more workers"}),
        (
            {"parallelism": {"activation_checkpointing": True}},
            {
                "/parallelism/activation_checkpointing": "true is not built yet; use false, or torch.utils.checkpoint "
                "in the model"
            },
        ),
        ({"queue": "fast"}, {"/queue": "fast is not built yet; use default"}),
        ({"priority": 3}, {"/priority": "3 is not built yet; use 0"}),
        (
            {"parallelism": {"tensor": 2, "pipeline": 2}},
            {
                "/parallelism/tensor": "2 is not built yet; use 1",
                "/parallelism/pipeline": "2 is not built yet; use 1",
            },
        ),
        ({"parallelism": {"shard": True}}, {"/parallelism/shard": "true is not built yet; use false"}),
        (
            {"parallelism": {"data": 2}},
            {"/parallelism/data": "2 is not built yet; use auto, and `workers` for the number of replicas"},
        ),
    ],
)
def test_what_is_not_built_yet_is_refused_with_what_to_use(changed: dict[str, Any], told: dict[str, str]) -> None:
    assert not_available(**changed) == told


def test_a_wrong_value_goes_before_one_that_is_not_built() -> None:
    assert set(refused(compile=True, steps=0)) == {"/steps"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(JobSpec.model_fields)) | st.text(max_size=5), JSON, max_size=4))
def test_any_document_is_either_a_spec_or_told_problems(document: dict[str, Any]) -> None:
    try:
        parse_job_spec({**BASE, **document})
    except SpecError as error:
        told = error.problems
    else:
        return
    assert all(p.detail and (p.pointer == "" or p.pointer.startswith("/")) for p in told)


def test_a_very_deep_document_is_an_error_and_no_crash() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert refused(config={"a": deep})


def test_parsing_loads_neither_torch_nor_ray() -> None:
    code = "import sys, workers.spec; print({'torch', 'ray', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"
