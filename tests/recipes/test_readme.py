"""The first job of README, as it stands there: it is accepted, it trains, and a plain model takes its weights home."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.cli.submit import code_folder, read_spec_file
from service.ids import bundle_id
from service.packing import pack
from tests.readme import block, file_name
from tests.training.group import Group
from tests.training.tasks import Script
from workers.checkpoints import list_checkpoints, read_manifest
from workers.entrypoint import build_from, load_entrypoint
from workers.local_storage import LocalStorage
from workers.spec import JobSpec, parse_job_spec
from workers.weights_file import weights_file

STEPS = 30


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobSpec]:
    """What `concertina submit job.yaml` sends; its code lies in the folder ``first`` and can be imported."""
    first = tmp_path / "first"
    first.mkdir()
    (first / "train.py").write_text(block("`first/train.py`:"))
    (first / "requirements.txt").write_text(block("`first/requirements.txt`,"))
    (tmp_path / "job.yaml").write_text(block("Beside the folder, `job.yaml`:"))
    document = read_spec_file(tmp_path / "job.yaml", "job", "")
    assert code_folder(document, tmp_path / "job.yaml") == first
    packed = pack(first)
    assert set(packed.sizes) == {"train.py", "requirements.txt"}
    monkeypatch.syspath_prepend(first)
    sent = {"bundle": bundle_id(packed.sha256), "dependencies": list(packed.dependencies)}
    yield parse_job_spec({**document, **sent})
    sys.modules.pop("train", None)


def test_the_first_job_of_readme_trains_and_its_weights_load_into_the_plain_model(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = load_entrypoint(spec.entrypoint, tmp_path / "first")
    script = Script(task=lambda: build_from(build, spec.entrypoint, spec.config))
    asked = {"batch": spec.batch.model_dump(), "optimizer": spec.optimizer.model_dump()}
    with Group(script, steps=STEPS, checkpoint={"metric": "eval.accuracy"}, eval_every_steps=STEPS, **asked) as group:
        workers = group.start(2)
        group.train(workers)
        group.await_done(workers)
        losses, last = group.losses(), group.records[1, STEPS]
        download(LocalStorage(Path(group.checkpoints)), tmp_path / file_name())
    assert losses[-1] < losses[0] / 2
    model = loaded(tmp_path, monkeypatch)
    task = build_from(build, spec.entrypoint, spec.config)
    assert task.eval_data is not None
    assert task.evaluate is not None
    everything = list(task.eval_data.tensors)  # type: ignore[attr-defined]  # README's is a TensorDataset
    assert float(task.evaluate(model, everything)["accuracy"]) == pytest.approx(last.values["eval.accuracy"])


def test_the_file_that_readme_loads_is_named_after_the_last_step_of_its_job(spec: JobSpec) -> None:
    samples = spec.total_samples(1500)
    assert file_name() == f"{spec.name}-{-(-samples // spec.batch.global_size)}.safetensors"


def download(storage: LocalStorage, file: Path) -> None:
    manifest = read_manifest(storage, list_checkpoints(storage)[-1].path)
    assert manifest is not None
    file.write_bytes(b"".join(weights_file(storage, manifest).chunks()))


def loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model that README's lines make, in a folder with the downloaded file."""
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec("from train import *\n" + block("it loads into the plain model"), names)
    return names["model"].eval()
