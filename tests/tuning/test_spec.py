"""The sweep spec: defaults, every refusal with its pointer, and no trial that is refused later."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuning.given import BASE, JOB, accepted, refused
from tuning.parsing import parse_sweep_spec, wanted_configuration
from tuning.space import space_of
from tuning.spec import SweepSpec, trial_name, trial_spec
from tuning.spec_problems import Known
from workers.errors import SpecError
from workers.spec import JobSpec
from workers.telemetry_keys import TELEMETRY_KEYS


def test_the_defaults_are_those_of_the_contract() -> None:
    spec = accepted()
    assert (spec.mode, spec.sampler, spec.pruner, spec.population) == ("max", "tpe", "asha", None)
    assert (spec.trials, spec.parallel, spec.seed, spec.warm_start, spec.promote) == (32, 4, 0, [], None)
    assert (spec.limits.time_s, spec.limits.cost, spec.limits.trials_without_improvement) == (None, None, None)


def test_a_spec_survives_its_own_json() -> None:
    spec = accepted(pruner={"asha": {"min_samples": 1000}}, limits={"time_s": 60})
    assert parse_sweep_spec(spec.model_dump(mode="json")) == spec
    assert spec.model_dump(mode="json")["space"]["config.hidden"] == {"int": [32, 512], "log": True}


def test_the_job_is_told_with_its_defaults_and_without_what_is_searched() -> None:
    job = accepted().job
    assert (job["epochs"], job["eval_every_steps"], job["seed"]) == (15, 100, 0)
    assert "name" not in job
    assert "lr" not in job["optimizer"]  # type: ignore[operator]  # an object of JSON
    assert "global_size" not in job["batch"]  # type: ignore[operator]  # the same


@pytest.mark.parametrize(
    ("path", "values", "defaults"),
    [
        ("communication.scheme", ["int8", "topk"], ["near_lossless", "lossy"]),
        ("workers.min", [1, 3], [1, 3]),
    ],
)
def test_a_default_that_hangs_on_what_is_searched_is_each_trials_own(
    path: str, values: list[Any], defaults: list[Any]
) -> None:
    spec = accepted(job={"entrypoint": JOB["entrypoint"], "epochs": 15}, space={path: {"choice": values}})
    assert parse_sweep_spec(spec.model_dump(mode="json")) == spec
    trials = [trial_spec(spec, number, {path: value}) for number, value in enumerate(values)]
    found = [job.exchange.loss_class if path.startswith("comm") else job.workers.max for job in trials]
    assert found == defaults
    given = accepted(job={**JOB, "workers": {"min": 1, "max": 4}}, space={"workers.min": {"int": [1, 4]}})
    assert trial_spec(given, 0, {"workers.min": 2}).workers.max == 4


def test_a_value_beside_the_space_holds_where_the_parameter_is_not_active() -> None:
    spec = accepted(job={**JOB, "config": {"dropout": 0.25}})
    point = {"optimizer.lr": 0.1, "batch.global_size": 32, "config.hidden": 40, "config.regularise": False}
    assert trial_spec(spec, 3, point).config == {"dropout": 0.25, "hidden": 40, "regularise": False}


def test_a_trial_is_the_job_with_the_point_in_it() -> None:
    point = {"optimizer.lr": 0.1, "batch.global_size": 32, "config.hidden": 40, "config.regularise": False}
    job = trial_spec(accepted(), 3, point)
    assert (job.name, job.optimizer.lr, job.batch.global_size) == ("digits-lr-3", 0.1, 32)
    assert (job.epochs, job.workers.max) == (15, 2)


@pytest.mark.parametrize("pruner", ["asha", "hyperband", "median"])
def test_a_pruner_that_looks_at_no_trial_before_its_end_is_refused_where_that_is_known(pruner: str) -> None:
    job = {**JOB, "epochs": None, "samples": 5_000}
    assert accepted(job=job, pruner={pruner: {"min_samples": 4_999}})
    told = refused(job=job, pruner={pruner: {"min_samples": 5_000}})
    assert list(told) == [f"/pruner/{pruner}/min_samples"]
    assert "a trial ends after 5,000 samples" in told[f"/pruner/{pruner}/min_samples"]
    assert accepted(pruner={pruner: {"min_samples": 5_000}}), "epochs are of a size that only the code knows"


@pytest.mark.parametrize(("batch", "every"), [(32, 31), (256, 3), (2048, 1), (4, 100)])
def test_a_trial_reports_at_the_first_rung_whatever_its_batch(batch: int, every: int) -> None:
    spec = accepted(space={"batch.global_size": {"choice": [4, 32, 256, 2048]}})
    assert trial_spec(spec, 0, {"batch.global_size": batch}, first_rung=1_000).eval_every_steps == every
    assert trial_spec(spec, 0, {"batch.global_size": batch}).eval_every_steps == 100


def test_how_often_a_trial_evaluates_is_left_alone_where_it_is_searched_or_not_the_metric() -> None:
    searched = accepted(space={"eval_every_steps": {"int": [50, 90]}})
    assert trial_spec(searched, 0, {"eval_every_steps": 70}, first_rung=128).eval_every_steps == 70
    by_loss = accepted(metric="loss", mode="min", space={"seed": {"int": [1, 2]}})
    assert trial_spec(by_loss, 0, {"seed": 1}, first_rung=128).eval_every_steps == 100


def test_the_name_of_a_trial_is_a_name_of_a_job_however_long_the_sweeps_is() -> None:
    assert trial_name("a" * 56 + "-" + "b" * 6, 1234) == "a" * 56 + "-b-1234"
    assert trial_name("a" * 57 + "-" + "b" * 5, 1234) == "a" * 57 + "-1234"


def test_a_job_may_come_from_a_configuration() -> None:
    document = {**BASE, "job": {"from": "best"}}
    assert wanted_configuration(document) == "best"
    spec = parse_sweep_spec(document, Known(configuration={**JOB, "name": "best", "seed": 7}))
    assert spec.job["seed"] == 7
    assert wanted_configuration(BASE) is wanted_configuration({"job": 3}) is wanted_configuration(None) is None


@pytest.mark.parametrize("document", [None, "name: x", 3, [BASE]])
def test_what_is_not_a_mapping_is_refused(document: object) -> None:
    with pytest.raises(SpecError, match="a sweep spec is a mapping"):
        parse_sweep_spec(document)


def test_all_problems_are_told_at_once() -> None:
    found = refused(name=None, trails=3, space={"optimizer.lr": {"log_uniform": [0]}}, job={"from": "x"}, sampler="tp")
    assert set(found) == {"/name", "/trails", "/space/optimizer.lr/log_uniform", "/job/from", "/sampler"}
    found = refused(space={"optimizer.lr": {"log_uniform": [0, 1]}, "x": {"int": [1, 2]}}, metric="acc", trials=3)
    assert set(found) == {"/space/optimizer.lr/log_uniform", "/space/x", "/metric"}
    from_zero = {"optimizer.lr": {"log_uniform": [0, 1]}}
    found = refused(trials="ten", space=from_zero)
    assert set(found) == {"/trials", "/space/optimizer.lr/log_uniform"}
    found = refused(name="My_Sweep", limits={"cost": 3}, job={**JOB, "epochs": -1})
    assert set(found) == {"/name", "/limits/cost", "/job/epochs"}


def test_a_field_that_cannot_be_read_makes_no_other_one_wrong() -> None:
    assert set(refused(population="pbt", space={"optimizer.lr": BASE["space"]["optimizer.lr"]}, parallel="x")) == {
        "/parallel"
    }
    conditional = {"config.dropout": BASE["space"]["config.dropout"], "config.regularise": {"choices": [True]}}
    assert set(refused(space=conditional)) == {"/space/config.regularise/choices"}
    assert set(refused(job=3, sampler="grid")) == {"/job"}


def test_a_path_that_no_job_has_is_told_beside_a_distribution_that_cannot_be_read() -> None:
    found = refused(space={"optimiser.lr": {"choice": [1]}, "optimizer.lr": {"uniform": ["a", 1]}})
    assert set(found) == {"/space/optimiser.lr", "/space/optimizer.lr/uniform/0"}
    both = refused(space={"optimiser.lr": {"uniform": ["a", 1]}})
    assert set(both) == {"/space/optimiser.lr", "/space/optimiser.lr/uniform/0"}


def test_a_sweep_without_a_space_is_told_what_is_missing() -> None:
    with pytest.raises(SpecError) as caught:
        parse_sweep_spec({key: value for key, value in BASE.items() if key != "space"})
    assert [problem.pointer for problem in caught.value.problems] == ["/space"]


@pytest.mark.parametrize(
    ("changed", "pointer", "told"),
    [
        ({"samplr": "tpe"}, "/samplr", "did you mean 'sampler'?"),
        ({"sampler": "tps"}, "/sampler", "did you mean 'tpe'?"),
        ({"pruner": "ahsa"}, "/pruner", "did you mean 'asha'?"),
        ({"pruner": {"asha": {"reductions": 3}}}, "/pruner/asha/reductions", "did you mean 'reduction'?"),
        (
            {"pruner": {"asha": {"reduction": 1}}},
            "/pruner/asha/reduction",
            "must be greater than or equal to 2 (seen: 1)",
        ),
        ({"pruner": {"asha": {}, "median": {}}}, "/pruner", "given: asha and median"),
        ({"pruner": {}}, "/pruner", "given: none of them"),
        ({"trials": 0}, "/trials", "must be greater than or equal to 1 (seen: 0)"),
        ({"trials": "32"}, "/trials", "a number is written without quotes"),
        ({"name": "My_Sweep"}, "/name", "must be a DNS-1123 label"),
        ({"promote": "a b"}, "/promote", "the name of a configuration"),
        ({"metric": "accuracy"}, "/metric", "write 'eval.accuracy' for what `evaluate`"),
        ({"metric": "gpu_utilisation"}, "/metric", "is measured on GPUs only (seen: resources.gpus=0)"),
        (
            {"metric": "gpu_utilisation", "job": {**JOB, "resources": {"gpus": 1, "cpus_instead": 2}}},
            "/metric",
            "and trials may sit on CPUs (seen: resources.cpus_instead=2)",
        ),
        ({"metric": "loss"}, "/mode", "say mode: min (or max)"),
        ({"metric": "user.latency_s"}, "/mode", "say mode: min (or max)"),
        ({"job": 3}, "/job", "must be a job spec without name, or {from: NAME}"),
        ({"job": {"from": "x"}}, "/job/from", "there is no configuration 'x'"),
        ({"job": {"from": "x", "epochs": 3}}, "/job", "stands alone; take out 'epochs'"),
        ({"job": {**JOB, "name": "x"}}, "/job/name", "leave the job's name out"),
        ({"job": {**JOB, "epoch": 3}}, "/job/epoch", "did you mean 'epochs'?"),
        ({"job": {**JOB, "epochs": None}}, "/job/steps", "exactly one of steps, epochs and samples"),
        ({"job": {"entrypoint": JOB["entrypoint"], "steps": 9}}, "/job/steps", "needs epochs or samples"),
        ({"job": {**JOB, "batch": {"micro_size": 64}}}, "/job/batch/micro_size", "64 is above batch.global_size=32"),
        ({"metric": "noise_scale"}, "/metric", "'noise_scale' is an average over the rounds so far"),
        ({"job": {**JOB, "batch": {"adapt": "goodput"}}}, "/space/batch.global_size", "set batch.adapt to fixed"),
        (
            {"space": {**BASE["space"], "batch.adapt": {"choice": ["fixed", "goodput"]}}},
            "/space/batch.global_size",
            "take batch.global_size out of the space",
        ),
        (
            {
                "job": {**JOB, "batch": {"adapt": "goodput"}},
                "space": {"optimizer.lr": BASE["space"]["optimizer.lr"]},
                "population": "pbt",
                "trials": 4,
            },
            "/population",
            "pbt gives running trials a batch with each of its orders",
        ),
        ({"limits": {"cost": 3}}, "/limits/cost", "the settings have no prices; set price_cpu_hour, or use time_s"),
        ({"limits": {"time": 3}}, "/limits/time", "did you mean 'time_s'?"),
        ({"warm_start": ["a", "a"]}, "/warm_start/1", "'a' is listed twice; keep one"),
        ({"sampler": "cmaes"}, "/space/batch.global_size", "cmaes knows numbers without choices"),
        ({"sampler": "cmaes"}, "/space/config.dropout", "cmaes knows numbers without conditions"),
        ({"sampler": "grid"}, "/space/optimizer.lr", "give a step, or list a choice"),
        ({"population": "pbt", "pruner": "asha"}, "/pruner", "leave the pruner out, or write pruner: none"),
        ({"population": "pbt"}, "/space/config.hidden", "can search optimizer.lr and batch.global_size only"),
        (
            {
                "population": "pbt",
                "space": {
                    "optimizer.lr": {"choice": [0.1, 0.01]},
                    "batch.global_size": {"choice": [32, 64], "when": {"optimizer.lr": 0.1}},
                },
            },
            "/space/batch.global_size",
            "pbt gives its trials other values while they run, whatever the conditions; take out when",
        ),
        (
            {"population": "pbt", "trials": 4, "space": {"optimizer.lr": {"choice": [0.1, 0.01, 0.001]}}},
            "/trials",
            "begins each trial at another point, and the space has 3 (seen: 4); lower it, or widen the space",
        ),
        ({"population": "pbt"}, "/parallel", "parallel=4 is below trials=32; raise it"),
        ({"population": "pb2", "trials": 3}, "/trials", "needs at least 4 trials (seen: 3)"),
        ({"population": "pb2"}, "/space/batch.global_size", "write int or uniform bounds, or use pbt"),
    ],
)
def test_a_wrong_value_is_told_with_what_to_give(changed: dict[str, Any], pointer: str, told: str) -> None:
    assert told in refused(**changed)[pointer]


def test_a_field_of_the_job_that_only_some_points_contradict_is_told_with_such_a_point() -> None:
    job = {**JOB, "batch": {"micro_size": 64}}
    assert refused(job=job)["/job/batch/micro_size"].startswith("with optimizer.lr=0.0001, batch.global_size=32: 64 is")
    assert refused(job={**JOB, "compil": 3})["/job/compil"].startswith("unknown key 'compil'; did you mean")


def test_what_is_not_built_yet_is_refused_as_such() -> None:
    space = {"compile": {"choice": [False, True]}}
    assert refused(code="NOT_AVAILABLE", space=space)["/space/compile"].startswith(
        "with compile=True: true is not built"
    )


def test_a_sampler_whose_package_is_missing_is_refused_when_the_sweep_is_made() -> None:
    space = {"optimizer.lr": {"log_uniform": [1e-4, 1e-1]}, "config.width": {"int": [8, 64]}}
    bare, full = Known(is_installed=lambda package: False), Known(is_installed=lambda package: True)
    assert "which the service lacks; use tpe" in refused(bare, space=space, sampler="cmaes")["/sampler"]
    assert accepted(full, space=space, sampler="cmaes").sampler == "cmaes"


def test_money_can_be_limited_where_there_are_prices() -> None:
    assert accepted(Known(has_prices=True), limits={"cost": 3}).limits.cost == 3


def test_a_population_needs_no_word_about_the_pruner() -> None:
    space = {k: BASE["space"][k] for k in ("optimizer.lr", "batch.global_size")}
    assert accepted(population="pbt", space=space, trials=4).pruner == "none"


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        ("lr", "'lr' is what a job is given, no result of it; name eval.NAME for what `evaluate` returns, user.NAME"),
        ("workers", "'workers' is what a job is given"),
        ("round_steps", "'round_steps' is what a job is given"),
        ("grad_norm", "'grad_norm' is of one round"),
        ("step_s", "or samples_per_s"),
        ("wire_bytes", "'wire_bytes' is of one round, and another batch or number of workers makes it another thing"),
        ("useful_tokens", "'useful_tokens' is of one round"),
    ],
)
def test_what_says_nothing_of_a_trials_worth_is_no_metric_of_a_sweep(metric: str, told: str) -> None:
    found = refused(metric=metric)
    assert list(found) == ["/metric"]
    assert told in found["/metric"]


def test_every_telemetry_key_is_a_metric_or_refused_as_one() -> None:
    with_gpu = {**JOB, "resources": {"gpus": 1}}
    for key in ("loss", "samples_per_s", "memory_bytes", "gpu_utilisation"):
        assert accepted(metric=key, mode="min", job=with_gpu).metric == key
    for key in TELEMETRY_KEYS - {"loss", "samples_per_s", "memory_bytes", "gpu_utilisation"}:
        assert list(refused(metric=key, mode="min", job=with_gpu)) == ["/metric"]


def test_a_metric_that_nothing_is_told_under_is_refused_with_those_that_a_sweep_can_be_over() -> None:
    told = refused(metric="acuracy")["/metric"]
    assert told == (
        "'acuracy' is not a telemetry key; write 'eval.acuracy' for what `evaluate` returns, 'user.acuracy' for "
        "what `loss` returns besides, or one of gpu_utilisation, loss, memory_bytes, samples_per_s"
    )
    assert "did you mean 'samples_per_s'? Else write 'eval.sample_per_s'" in refused(metric="sample_per_s")["/metric"]


LESS = """loss memory_bytes user.latency_s user.step_ms eval.mse eval.val_rmse eval.MAE eval.nll eval.wer eval.cer
eval.ppl eval.perplexity eval.error eval.error_rate eval.top5_error eval.valLoss eval.logloss eval.cross_entropy
eval.loss_b eval.negative_log_likelihood eval.false_positive_rate eval.bits_per_byte user.seconds_per_step
user.errors_per_hour eval.loss.total user.peak-memory eval.l2Error2"""


@pytest.mark.parametrize("metric", LESS.split())
def test_a_metric_that_sounds_as_if_less_were_better_says_which_way(metric: str) -> None:
    assert list(refused(metric=metric)) == ["/mode"]
    assert accepted(metric=metric, mode="max").mode == "max"


MORE = """samples_per_s eval.accuracy user.reward eval.f1 eval.r2 eval.log_likelihood eval.neg_mean_squared_error
user.tokens_per_second user.bytes_per_s eval.bleu eval.rouge_l eval.true_negative_rate eval.errata_found
eval.glossary"""


@pytest.mark.parametrize("metric", MORE.split())
def test_more_is_better_where_nothing_says_otherwise(metric: str) -> None:
    assert accepted(metric=metric).mode == "max"


def test_a_very_deep_document_is_an_error_and_no_crash() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert refused(job={**JOB, "config": {"a": deep}})
    assert refused(space={"optimizer.lr": {"choice": deep}})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([10**400, -(10**400)]) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
PATHS = st.sampled_from(
    ["optimizer.lr", "batch", "workers.max", "config.x", "env.A", "labels.a", "communication.scheme"]
)
KINDS = st.sampled_from(["uniform", "log_uniform", "int", "choice", "step", "log", "when"])
ODD = st.one_of(JSON, st.lists(st.one_of(st.integers(), st.floats(), JSON), min_size=2, max_size=2))
SPACES = st.dictionaries(PATHS | st.text(max_size=5), JSON | st.dictionaries(KINDS, ODD, max_size=2), max_size=3)


@settings(max_examples=300)
@given(
    st.dictionaries(st.sampled_from(sorted(SweepSpec.model_fields)) | st.text(max_size=5), JSON, max_size=3),
    st.none() | SPACES,
    st.none() | st.dictionaries(st.sampled_from(sorted(JobSpec.model_fields)), JSON, max_size=3),
)
def test_any_document_is_either_a_spec_or_told_problems(
    document: dict[str, Any], space: dict[str, Any] | None, job: dict[str, Any] | None
) -> None:
    whole = {**BASE, **document}
    whole |= {} if space is None else {"space": space}
    whole |= {} if job is None else {"job": {**JOB, **job}}
    try:
        parse_sweep_spec(whole)
    except SpecError as error:
        told = error.problems
    else:
        return
    assert all(p.detail and (p.pointer == "" or p.pointer.startswith("/")) for p in told)


def test_every_point_of_the_base_is_a_job() -> None:
    spec = accepted()
    for number, point in enumerate(space_of(spec.space).corners()):
        assert trial_spec(spec, number, point).optimizer.lr > 0


def test_reading_a_spec_loads_nothing_heavy() -> None:
    code = "import sys, tuning.parsing, tuning.pruning; print({'torch', 'ray', 'numpy', 'optuna'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"
