"""From ``module:callable`` to a task: what is found, what is refused, and with which words."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from workers.entrypoint import build_from, checked_task, enter_bundle, load_entrypoint
from workers.errors import DataError, EntrypointError
from workers.task import TrainingTask

BuildIn = Callable[[str, str], TrainingTask]

GOOD = """
from types import SimpleNamespace
import torch
def build(config):
    return SimpleNamespace(model=torch.nn.Linear(2, 1), train_data=[1, 2], loss=lambda m, b: m(b).mean(), config=config)
"""


@pytest.fixture
def build_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BuildIn]:
    """Builds an entrypoint of a bundle whose ``train.py`` is given; the process is as before afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    known = set(sys.modules)

    def build(source: str, entrypoint: str = "train:build") -> TrainingTask:
        (tmp_path / "train.py").write_text(source)
        enter_bundle(tmp_path)
        return build_from(load_entrypoint(entrypoint, tmp_path), entrypoint, {"hidden": 3})

    yield build
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def refused(build_in: BuildIn, source: str, entrypoint: str = "train:build") -> str:
    with pytest.raises(EntrypointError) as caught:
        build_in(source, entrypoint)
    return caught.value.message


def test_any_object_with_the_attributes_becomes_a_task(build_in: BuildIn, tmp_path: Path) -> None:
    task = build_in(GOOD, "train:build")
    assert isinstance(task, TrainingTask)
    assert len(task.train_data) == 2
    assert (task.weight, task.eval_data, task.evaluate, task.optimizer, task.collate, task.length) == (None,) * 6
    assert Path(os.getcwd()) == tmp_path
    assert sys.path[0] == str(tmp_path)


def test_the_config_is_a_copy(build_in: BuildIn) -> None:
    config: dict[str, Any] = {"sizes": [1]}

    def build(given: dict[str, Any]) -> object:
        given["sizes"].append(2)
        return SimpleNamespace(model=nn.Linear(1, 1), train_data=[1], loss=len)

    build_from(build, "train:build", config)
    assert config == {"sizes": [1]}


def test_a_missing_module_suggests_one_of_the_bundle(build_in: BuildIn) -> None:
    assert "no module 'trian'; did you mean 'train'?" in refused(build_in, GOOD, "trian:build")


def test_a_missing_module_lists_those_of_the_bundle(build_in: BuildIn) -> None:
    assert "modules in the bundle: train" in refused(build_in, GOOD, "elsewhere.model:build")


def test_a_missing_import_names_the_remedy(build_in: BuildIn) -> None:
    message = refused(build_in, "import a_package_that_nobody_has.part\n")
    assert message.endswith(
        "imports 'a_package_that_nobody_has', which is not installed; add 'a_package_that_nobody_has' to `dependencies`"
    )


def test_a_missing_import_inside_build_names_the_remedy_too(build_in: BuildIn) -> None:
    message = refused(build_in, "def build(config):\n    import cv2_is_not_here\n")
    assert "add 'cv2_is_not_here' to `dependencies`" in message


def test_a_missing_import_is_told_by_the_name_that_installers_know(build_in: BuildIn) -> None:
    assert "add 'opencv-python-headless' to `dependencies`" in refused(build_in, "import cv2\n")


def test_a_misspelt_import_of_an_own_module_is_suggested(build_in: BuildIn, tmp_path: Path) -> None:
    (tmp_path / "networks.py").touch()
    assert "did you mean your own 'networks'?" in refused(build_in, "import network\n")


def test_a_missing_callable_suggests_another(build_in: BuildIn) -> None:
    message = refused(build_in, "def build_task(config): ...\n", "train:buildtask")
    assert "has no 'buildtask'; did you mean 'build_task'?" in message


def test_something_not_callable_is_refused(build_in: BuildIn) -> None:
    assert "'build' is a int, not a callable" in refused(build_in, "build = 3\n")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("raise KeyError('lr')", "importing 'train' raised KeyError: 'lr'"),
        ("def build(config)\n", "importing 'train' raised SyntaxError"),
        ("import sys; sys.exit(2)", "importing 'train' raised SystemExit: 2"),
        ("def build(config): raise ValueError('hidden must be even')", "raised ValueError: hidden must be even"),
        ("def build(config): exit()", "raised SystemExit"),
        ("def build(): ...", "must take one argument, the config"),
        ("def build(config, extra): ...", "must take one argument, the config"),
        ("def build(config): ...", "returned None (is a `return` missing?) without model, train_data, loss"),
        ("def build(config): return {'model': 1}", "returned a dict without model, train_data, loss"),
    ],
)
def test_user_code_that_fails_is_told_with_its_place(build_in: BuildIn, source: str, told: str) -> None:
    assert told in refused(build_in, source)


def test_the_users_own_traceback_is_kept_as_the_cause(build_in: BuildIn) -> None:
    with pytest.raises(EntrypointError) as caught:
        build_in("def build(config): return 1 / 0\n", "train:build")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_job_error_raised_by_the_users_code_passes_through(build_in: BuildIn) -> None:
    source = "from workers.errors import DataError\ndef build(config): raise DataError('no files; add some')\n"
    with pytest.raises(DataError, match="no files; add some"):
        build_in(source, "train:build")


def test_a_module_hidden_by_one_of_the_interpreter_is_told(build_in: BuildIn, tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text(GOOD)
    assert "'queue' in the bundle is hidden by the module of that name" in refused(build_in, GOOD, "queue:Queue")


def task_with(**changed: Any) -> SimpleNamespace:
    given: dict[str, Any] = {"model": nn.Linear(2, 1), "train_data": [1, 2], "loss": lambda m, b: m(b).mean()}
    return SimpleNamespace(**{**given, **changed})


class Stream(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Endless(list[int]):
    def __len__(self) -> int:
        raise NotImplementedError("nobody knows")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"model": nn.Linear}, "returned the class Linear as model; give an instance"),
        ({"model": "resnet"}, "returned a str as model; give a torch.nn.Module"),
        ({"model": nn.ReLU()}, "without a parameter that requires a gradient"),
        ({"loss": 3}, "returned a int as loss; give a function"),
        ({"optimizer": "adam"}, "returned a str as optimizer; give a function"),
        ({"train_data": Stream()}, "returned a Stream as train_data; give a map-style dataset"),
        ({"train_data": Endless()}, "whose __len__ raised NotImplementedError: nobody knows; let it return the number"),
        ({"train_data": iter([1])}, "give a map-style dataset"),
        ({"eval_data": [1]}, "returned eval_data without evaluate; give both"),
        ({"evaluate": lambda m, b: {}}, "returned evaluate without eval_data; give both"),
        ({"loss": None}, "without loss"),
        ({"packed": 1}, "returned 1 as packed; give True or False"),
        ({"packed": True}, "returned packed=True without length and collate; return `length`"),
    ],
)
def test_a_task_that_cannot_be_trained_is_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(EntrypointError) as caught:
        checked_task(task_with(**changed), "train:build")
    assert told in caught.value.message


@pytest.mark.parametrize("name", ["train_data", "eval_data"])
def test_an_empty_dataset_is_refused(name: str) -> None:
    empty = {name: [], "evaluate": (lambda m, b: {}) if name == "eval_data" else None}
    with pytest.raises(DataError, match=rf"{name} is empty \(0 samples\)"):
        checked_task(task_with(**empty), "train:build")


def test_a_bundle_with_modules_named_like_the_services_wins(tmp_path: Path) -> None:
    """In a process of its own, as a worker is: the user's tuning/ and service.py are found first."""
    (tmp_path / "tuning").mkdir()
    (tmp_path / "tuning" / "__init__.py").write_text("WHO = 'user'\n")
    (tmp_path / "service.py").write_text("WHO = 'user'\n")
    (tmp_path / "train.py").write_text(
        "import service, tuning\n" + GOOD + "\nassert service.WHO == tuning.WHO == 'user'\n"
    )
    code = (
        "from pathlib import Path; from workers.entrypoint import *\n"
        f"enter_bundle(Path({str(tmp_path)!r})); build = load_entrypoint('train:build', Path({str(tmp_path)!r}))\n"
        "print(type(build_from(build, 'train:build', {})).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == ("TrainingTask", "")


def test_importing_the_module_loads_neither_torch_nor_ray() -> None:
    code = "import sys, workers.entrypoint, workers.bundle; print({'torch', 'ray', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"
