"""From ``module:callable`` to a ``TrainingTask``: importing, calling and checking the user's code."""

from __future__ import annotations

import copy
import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from workers.errors import DataError, EntrypointError, JobError, described
from workers.task import TrainingTask

Build: TypeAlias = Callable[[dict[str, Any]], object]

# Packages whose import name is not what an installer knows them by.
_DISTRIBUTIONS = {
    "cv2": "opencv-python-headless",
    "PIL": "pillow",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
    "bs4": "beautifulsoup4",
    "dateutil": "python-dateutil",
    "Bio": "biopython",
    "attr": "attrs",
}


def enter_bundle(folder: Path) -> None:
    """Make the extracted bundle the working directory and the first place that imports look at."""
    os.chdir(folder)
    sys.path[:] = [str(folder), *(p for p in sys.path if p != str(folder))]
    importlib.invalidate_caches()


def load_entrypoint(entrypoint: str, folder: Path | None) -> Build:
    """Import the callable that ``entrypoint`` (``module:callable``) names.

    ``folder`` is the extracted bundle, already entered, or None for a built-in recipe; it is only
    looked at for better messages. Runs the user's module.

    Raises EntrypointError; errors of the tree that the module itself raises pass through.
    """
    module_name, _, callable_name = entrypoint.partition(":")
    module = _import(module_name, entrypoint, folder)
    try:
        found = getattr(module, callable_name)
    except AttributeError:
        public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise EntrypointError(
            f"entrypoint {entrypoint!r}: module {module_name!r} has no {callable_name!r}; "
            f"{_suggestion(callable_name, public, 'callables there')}"
        ) from None
    if not callable(found):
        raise EntrypointError(
            f"entrypoint {entrypoint!r}: {callable_name!r} is a {type(found).__name__}, not a callable; "
            "name a function that takes the config and returns a TrainingTask"
        )
    return found  # type: ignore[no-any-return]  # the user's code has no types that could be checked


def build_from(build: Build, entrypoint: str, config: Mapping[str, Any]) -> TrainingTask:
    """Call the entrypoint with a copy of ``config`` and check what it returns.

    Raises EntrypointError or DataError; errors of the tree that the user's code raises pass through.
    """
    _check_signature(build, entrypoint)
    try:
        answer = build(copy.deepcopy(dict(config)))
    except JobError:
        raise
    except ModuleNotFoundError as error:
        raise _missing_import(error, entrypoint, None) from error
    except (Exception, SystemExit) as error:
        raise EntrypointError(
            f"entrypoint {entrypoint!r} raised {described(error)}; correct it or its config"
        ) from error
    return checked_task(answer, entrypoint)


def checked_task(answer: object, entrypoint: str) -> TrainingTask:
    """The task as a ``TrainingTask``, from any object with its attributes; missing optional ones get the default.

    Raises EntrypointError where an attribute is missing or of no use, DataError where a dataset is empty.
    """
    lacking = [f.name for f in fields(TrainingTask) if f.default is MISSING and getattr(answer, f.name, None) is None]
    if lacking:
        seen = "None (is a `return` missing?)" if answer is None else f"a {type(answer).__name__}"
        raise EntrypointError(
            f"entrypoint {entrypoint!r} returned {seen} without {', '.join(lacking)}; "
            "return a workers.task.TrainingTask, or any object with the attributes model, train_data and loss"
        )
    attributes: dict[str, Any] = {f.name: getattr(answer, f.name, None) for f in fields(TrainingTask)}
    task = TrainingTask(**{name: value for name, value in attributes.items() if value is not None})
    _check_model(task.model, entrypoint)
    _check_callables(task, entrypoint)
    _check_lengths(task, entrypoint)
    _check_dataset(task.train_data, "train_data", entrypoint)
    if task.eval_data is not None:
        _check_dataset(task.eval_data, "eval_data", entrypoint)
    if (task.eval_data is None) != (task.evaluate is None):
        given, wanted = ("eval_data", "evaluate") if task.evaluate is None else ("evaluate", "eval_data")
        raise EntrypointError(
            f"entrypoint {entrypoint!r} returned {given} without {wanted}; give both for an evaluation, or neither"
        )
    return task


def _import(module_name: str, entrypoint: str, folder: Path | None) -> ModuleType:
    try:
        module = importlib.import_module(module_name)
    except JobError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise EntrypointError(
                f"entrypoint {entrypoint!r}: there is no module {error.name!r}; "
                f"{_suggestion(module_name, _modules_in(folder), 'modules in the bundle')}"
            ) from None
        raise _missing_import(error, entrypoint, folder) from error
    except (Exception, SystemExit) as error:
        raise EntrypointError(f"importing {module_name!r} raised {described(error)}; correct the module") from error
    _check_origin(module, module_name, entrypoint, folder)
    return module


def _check_origin(module: ModuleType, module_name: str, entrypoint: str, folder: Path | None) -> None:
    """A bundle's module must not lose to one of the same name that was imported before it."""
    top = module_name.split(".")[0]
    if folder is None or top not in _modules_in(folder):
        return
    origin = getattr(module, "__file__", None)
    if origin is None or not Path(origin).resolve().is_relative_to(folder.resolve()):
        raise EntrypointError(
            f"entrypoint {entrypoint!r}: {top!r} in the bundle is hidden by the module of that name at "
            f"{origin or 'the interpreter itself'}; rename yours"
        )


def _missing_import(error: ModuleNotFoundError, entrypoint: str, folder: Path | None) -> EntrypointError:
    name = error.name or str(error)
    top = name.split(".")[0]
    near = difflib.get_close_matches(top, _modules_in(folder), n=1)
    hint = f" (or did you mean your own {near[0]!r}?)" if near else ""
    return EntrypointError(
        f"entrypoint {entrypoint!r} imports {name!r}, which is not installed; "
        f"add {_DISTRIBUTIONS.get(top, top)!r} to `dependencies`{hint}"
    )


def _modules_in(folder: Path | None) -> list[str]:
    if folder is None or not folder.is_dir():
        return []
    return sorted(
        p.stem if p.is_file() else p.name
        for p in folder.iterdir()
        if (p.suffix == ".py" and p.is_file()) or (p.is_dir() and p.name.isidentifier() and p.name != "__pycache__")
    )


def _suggestion(wanted: str, known: list[str], what: str) -> str:
    near = difflib.get_close_matches(wanted, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"{what}: {', '.join(sorted(known)[:20]) or 'none'}"


def _check_signature(build: Build, entrypoint: str) -> None:
    try:
        signature = inspect.signature(build)
    except (TypeError, ValueError):
        return  # written in C, or a class that hides it: calling will tell
    try:
        signature.bind({})
    except TypeError as error:
        raise EntrypointError(
            f"entrypoint {entrypoint!r} has the signature {signature} and cannot be called with the config alone "
            f"({error}); it must take one argument, the config"
        ) from None


def _check_model(model: Any, entrypoint: str) -> None:
    if isinstance(model, type):
        raise EntrypointError(
            f"entrypoint {entrypoint!r} returned the class {model.__name__} as model; give an instance of it"
        )
    if not (callable(getattr(model, "parameters", None)) and callable(getattr(model, "state_dict", None))):
        raise EntrypointError(
            f"entrypoint {entrypoint!r} returned a {type(model).__name__} as model; give a torch.nn.Module instance"
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise EntrypointError(
            f"entrypoint {entrypoint!r} returned a model without a parameter that requires a gradient; "
            "leave at least one trainable"
        )


def _check_callables(task: TrainingTask, entrypoint: str) -> None:
    for name in ("loss", "weight", "evaluate", "optimizer", "collate", "length", "length_at"):
        value = getattr(task, name)
        if value is not None and not callable(value):
            raise EntrypointError(
                f"entrypoint {entrypoint!r} returned a {type(value).__name__} as {name}; give a function"
            )


def _check_lengths(task: TrainingTask, entrypoint: str) -> None:
    if task.length is not None and task.length_at is not None:
        raise EntrypointError(
            f"entrypoint {entrypoint!r} returned `length` and `length_at`; return length_at alone where a sample's "
            "tokens are known by its index, and length alone where it must be read for that"
        )
    if not isinstance(task.packed, bool):
        raise EntrypointError(
            f"entrypoint {entrypoint!r} returned {task.packed!r:.80} as packed; give True or False: whether collate "
            "lays samples end to end"
        )
    lacking = [*(() if task.tells_lengths else ("length",)), *(() if task.collate else ("collate",))]
    if task.packed and lacking:
        raise EntrypointError(
            f"entrypoint {entrypoint!r} returned packed=True without {' and '.join(lacking)}; return `length`, which "
            "tells a sample's tokens, and a `collate` that lays samples end to end, or leave `packed` out"
        )


def _check_dataset(data: Any, name: str, entrypoint: str) -> None:
    is_iterable_only = any(c.__name__ == "IterableDataset" for c in type(data).__mro__)
    if is_iterable_only or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise EntrypointError(
            f"entrypoint {entrypoint!r} returned a {type(data).__name__} as {name}; "
            "give a map-style dataset, with __len__ and __getitem__ (wrap a stream in a list or a file with an index)"
        )
    try:
        num_samples = len(data)
    except Exception as error:  # as of streams that do not know
        raise EntrypointError(
            f"entrypoint {entrypoint!r} returned a {type(data).__name__} as {name} whose __len__ raised "
            f"{described(error)}; let it return the number of samples (wrap a stream in a list or a file with an index)"
        ) from error
    if num_samples == 0:
        raise DataError(f"entrypoint {entrypoint!r}: {name} is empty (0 samples); give at least one sample")
