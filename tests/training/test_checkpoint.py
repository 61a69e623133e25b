"""Checkpoints: what is written is read back equal, and appears whole or not at all."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.readme import block, file_name
from workers.checkpoints import DRAFTS, MANIFESTS, PIECES, damage, list_checkpoints, manifest_key, read_manifest
from workers.errors import CheckpointError
from workers.local_storage import LocalStorage
from workers.storage import Data
from workers.training.checkpoint import CheckpointWriter
from workers.training.loading import check_fits, load_checkpoint, load_weights
from workers.training.plain import plain_state
from workers.training.state import CheckpointHeader, StateSnapshot
from workers.weights_file import weights_file

WAIT_S = 60.0


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids_B: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(self.embed(ids_B)))
        return logits


def trained(kind: type[torch.optim.Optimizer] = torch.optim.AdamW) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Tied()
    optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]  # every optimizer used here takes lr
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.arange(7)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def snapshot(round: int = 1, model: nn.Module | None = None, optimizer: Any = None) -> StateSnapshot:
    model = model or nn.Linear(2, 2)
    return StateSnapshot(
        model=model.state_dict(),
        optimizer=optimizer or {},
        scaler={"scale": 2.0},
        noise={"variance": 3.0},
        round=round,
        cursor=round * 8,
    )


def header(round: int = 1, **changed: Any) -> CheckpointHeader:
    given = CheckpointHeader(
        attempt=1, lineage=1, round=round, generation=1, step=round, cursor=round * 8, metric=None, is_final=False
    )
    return replace(given, **changed)


def writer_in(root: Path, keep: int = 2, metric: str | None = None, mode: str = "max") -> CheckpointWriter:
    return CheckpointWriter(LocalStorage(root), keep, metric, mode)


def save(writer: CheckpointWriter, round: int, state: StateSnapshot | None = None, **changed: Any) -> None:
    writer.save(state or snapshot(round), header(round, **changed), writer.staging())
    writer.flush(WAIT_S)


def rounds_in(root: Path) -> list[int]:
    return [info.round for info in list_checkpoints(LocalStorage(root))]


def download(root: Path, name: str) -> Path:
    """The file that a user gets."""
    storage = LocalStorage(root)
    manifest = read_manifest(storage, name)
    assert manifest is not None
    file = weights_file(storage, manifest)
    path = root.parent / f"{name}.safetensors"
    path.write_bytes(b"".join(file.chunks()))
    assert path.stat().st_size == file.size_bytes
    return path


def pieces_in(root: Path) -> set[str]:
    return set(LocalStorage(root).keys(PIECES))


def needed_in(root: Path) -> set[str]:
    manifests = [read_manifest(LocalStorage(root), info.path) for info in list_checkpoints(LocalStorage(root))]
    return {piece for manifest in manifests if manifest for piece in manifest.pieces}


def test_the_lines_of_readme_load_the_weights_of_a_plain_model_tied_ones_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = trained()
    writer = writer_in(tmp_path / "root")
    save(writer, 1, snapshot(1, model, optimizer.state_dict()))
    [info] = writer.finished()
    download(tmp_path / "root", info.path).rename(tmp_path / file_name())

    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"PatchNet": lambda _: Tied()}
    exec(block("it loads into the plain model"), names)
    fresh = names["model"]
    fresh.eval(), model.eval()

    assert torch.equal(fresh(torch.arange(7)), model(torch.arange(7)))
    assert fresh.head.weight is fresh.embed.weight


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.Rprop])
def test_a_restored_training_goes_on_bit_for_bit(kind: type[torch.optim.Optimizer], tmp_path: Path) -> None:
    model, optimizer = trained(kind)
    writer = writer_in(tmp_path)
    save(writer, 2, snapshot(2, model, optimizer.state_dict()))
    loaded = load_checkpoint(f"{tmp_path}/{writer.finished()[0].path}")
    assert (loaded.round, loaded.cursor, loaded.scaler, loaded.noise) == (2, 16, {"scale": 2.0}, {"variance": 3.0})

    other, twin = trained(kind)
    for p in other.parameters():
        p.data.zero_()
    other.load_state_dict(loaded.model)
    twin.load_state_dict(loaded.optimizer)
    for m, o in ((model, optimizer), (other, twin)):
        o.zero_grad()
        m(torch.arange(7)).square().mean().backward()
        o.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_what_was_left_out_of_gradients_is_kept_by_parameter_and_checked_and_is_no_weight(tmp_path: Path) -> None:
    left_out = {"weight": torch.arange(4096.0).view(64, 64), "bias": torch.tensor([0.5, -1.0])}
    writer = writer_in(tmp_path, keep=3)
    save(writer, 1, replace(snapshot(1), residual=left_out))
    save(writer, 2, replace(snapshot(2), residual=left_out))
    save(writer, 3, replace(snapshot(3), residual={**left_out, "bias": torch.zeros(2)}))
    infos = writer.finished()
    assert all(info.size_bytes > left_out["weight"].nbytes for info in infos)
    first, _, third = (info.path for info in infos)
    back = load_checkpoint(f"{tmp_path}/{first}").residual
    assert back.keys() == left_out.keys()
    assert all(torch.equal(back[name], values) for name, values in left_out.items())
    manifests = [read_manifest(LocalStorage(tmp_path), name) for name in (first, third)]
    whole, changed = (manifest for manifest in manifests if manifest is not None)
    assert changed.residual["weight"] == whole.residual["weight"]  # not written again
    assert changed.residual["bias"] != whole.residual["bias"]
    [piece] = {entry.piece for entry in whole.residual.values()}
    data = bytearray((tmp_path / piece).read_bytes())
    data[whole.residual["weight"].offset] ^= 1
    (tmp_path / piece).write_bytes(data)
    assert damage(LocalStorage(tmp_path), first) is not None
    assert load_weights(f"{tmp_path}/{first}").keys() == left_out.keys()  # whoever wants the weights needs no more


def test_shared_views_and_transposed_memory_are_written_whole(tmp_path: Path) -> None:
    memory = torch.arange(12.0)
    state = {
        "all": memory,
        "part": memory[2:4],
        "turned": memory.view(3, 4).t(),
        "empty": torch.empty(0),
        "one": memory[0],
    }
    writer = writer_in(tmp_path)
    save(writer, 1, StateSnapshot(model=state, optimizer={}, scaler=None, round=1, cursor=8))
    back = load_weights(f"{tmp_path}/{writer.finished()[0].path}")
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
)
def test_every_format_comes_back_as_it_was(dtype: torch.dtype, tmp_path: Path) -> None:
    value = torch.tensor([0, 1, 1]).to(dtype)
    writer = writer_in(tmp_path)
    save(writer, 1, StateSnapshot(model={"x": value}, optimizer={}, scaler=None, round=1, cursor=8))
    back = load_weights(f"{tmp_path}/{writer.finished()[0].path}")["x"]
    assert (back.dtype, back.tolist()) == (dtype, value.tolist())


def test_the_manifest_tells_what_the_checkpoint_is(tmp_path: Path) -> None:
    writer = writer_in(tmp_path, metric="eval.accuracy")
    save(writer, 5, metric=0.75, held_s=0.01, plan_sections={"global_batch": 128}, lineage=3, generation=4)
    [info] = writer.finished()
    assert writer.finished() == []
    assert (info.path, info.round, info.step, info.cursor) == ("0001-0003-000000005-00004", 5, 5, 40)
    assert (info.metric, info.held_s, info.is_final) == (0.75, 0.01, False)
    manifest = read_manifest(LocalStorage(tmp_path), info.path)
    assert manifest is not None
    assert manifest.info == info
    assert manifest.plan == {"global_batch": 128}
    assert info.written_bytes == sum((tmp_path / piece).stat().st_size for piece in manifest.pieces)
    assert 0 < info.size_bytes <= info.written_bytes
    assert damage(LocalStorage(tmp_path), info.path) is None
    assert LocalStorage(tmp_path).keys(DRAFTS) == []


@pytest.mark.parametrize("metric", [float("nan"), float("inf")])
def test_a_metric_that_is_not_finite_is_none_and_the_manifest_stays_json(metric: float, tmp_path: Path) -> None:
    writer = writer_in(tmp_path, metric="eval.loss", mode="min")
    save(writer, 1, metric=metric)
    [info] = writer.finished()
    assert info.metric is None

    def refuse(text: str) -> None:
        raise AssertionError(text)

    json.loads((tmp_path / manifest_key(info.path)).read_text(), parse_constant=refuse)


def test_the_same_state_saved_again_as_final_only_changes_the_manifest(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    save(writer, 1, metric=0.5)
    before = pieces_in(tmp_path)
    writer.finished()
    save(writer, 1, is_final=True)
    [info] = writer.finished()
    assert (info.is_final, info.metric, rounds_in(tmp_path)) == (True, 0.5, [1])
    assert pieces_in(tmp_path) == before
    assert damage(LocalStorage(tmp_path), info.path) is None


class GatedStorage(LocalStorage):
    """Stands in the writer's way after a piece is written, until it is opened."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reached, self.opened = threading.Event(), threading.Event()

    def write(self, key: str, parts: Iterable[Data]) -> int:
        size_bytes = super().write(key, parts)
        if key.startswith(PIECES):
            self.reached.set()
            assert self.opened.wait(WAIT_S)
        return size_bytes


def begin(writer: CheckpointWriter, round: int) -> None:
    staging = writer.staging()
    writer.save(snapshot(round), header(round), staging)


def gated(root: Path) -> tuple[GatedStorage, CheckpointWriter]:
    storage = GatedStorage(root)
    return storage, CheckpointWriter(storage, 2, None, "max")


def test_a_save_in_progress_is_not_seen_until_it_is_complete(tmp_path: Path) -> None:
    gate, writer = gated(tmp_path)
    begin(writer, 1)
    assert gate.reached.wait(WAIT_S)
    assert (rounds_in(tmp_path), writer.finished()) == ([], [])
    with pytest.raises(CheckpointError, match=r"not written to .* within 0 s"):
        writer.flush(0)
    gate.opened.set()
    writer.flush(WAIT_S)
    assert rounds_in(tmp_path) == [1]


def test_an_abandoned_save_never_appears_and_the_previous_stays(tmp_path: Path) -> None:
    save(writer_in(tmp_path), 1)
    gate, writer = gated(tmp_path)
    begin(writer, 2)
    assert gate.reached.wait(WAIT_S)
    begin(writer, 3)
    writer.abandon()
    gate.opened.set()
    writer.flush(WAIT_S)
    assert (writer.finished(), rounds_in(tmp_path)) == ([], [1])
    assert LocalStorage(tmp_path).keys(DRAFTS) == []
    assert pieces_in(tmp_path) == needed_in(tmp_path)
    save(writer, 4)
    assert rounds_in(tmp_path) == [1, 4]


def test_of_the_saves_that_wait_the_newest_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gate, writer = gated(tmp_path)
    begin(writer, 1)
    assert gate.reached.wait(WAIT_S)
    begin(writer, 2)
    begin(writer, 3)
    gate.opened.set()
    writer.flush(WAIT_S)
    assert rounds_in(tmp_path) == [1, 3]
    assert "checkpoint of step 2 skipped" in capsys.readouterr().out


def test_a_failed_save_is_told_and_the_next_one_may_succeed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "storage"
    root.write_text("a file where the folder should be")
    writer = writer_in(root)
    begin(writer, 1)
    with pytest.raises(CheckpointError, match=r"checkpoint of step 1 cannot be written to .*storage"):
        writer.flush(WAIT_S)
    assert "cannot be written" in capsys.readouterr().out
    root.unlink()
    save(writer, 2)
    assert rounds_in(root) == [2]


def test_a_missing_checkpoint_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere is missing; take another"):
        load_checkpoint(f"{tmp_path}/nowhere")


@pytest.mark.parametrize("folder", [MANIFESTS, PIECES])
@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_damage_is_told_by_its_place(folder: str, harm: str, tmp_path: Path) -> None:
    save(writer_in(tmp_path), 1)
    [info] = list_checkpoints(LocalStorage(tmp_path))
    for key in LocalStorage(tmp_path).keys(folder):
        spoil(tmp_path / key, harm)
    assert damage(LocalStorage(tmp_path), info.path) is not None
    place = "manifest" if folder == MANIFESTS else PIECES
    with pytest.raises(CheckpointError, match=rf"{place}.* is damaged: .*; take another|is missing; take another"):
        load_checkpoint(f"{tmp_path}/{info.path}")


def spoil(path: Path, harm: str) -> None:
    data = bytearray(path.read_bytes())
    if harm == "remove":
        path.unlink()
    elif harm == "cut":
        path.write_bytes(data[:-1])
    else:
        data[len(data) // 2] ^= 0x01
        path.write_bytes(data)


def test_weights_of_another_model_are_told_by_the_first_tensors_that_differ() -> None:
    model, weights = nn.Linear(4, 8).state_dict(), nn.Linear(4, 16).state_dict()
    del weights["bias"]
    weights["gate"] = torch.zeros(1)
    with pytest.raises(CheckpointError) as caught:
        check_fits(model, weights, "j-1/step 20")
    for told in ("j-1/step 20", "'bias' is not in the checkpoint", "'gate' is not in the model", "[16, 4]", "[8, 4]"):
        assert told in caught.value.message
    check_fits(model, nn.Linear(4, 8).state_dict(), "itself")


def test_only_the_first_of_many_differences_are_named() -> None:
    model = {f"layer{i}": torch.zeros(i + 1) for i in range(10)}
    with pytest.raises(CheckpointError, match=r"'layer2' is .* and 7 more; use the entrypoint"):
        check_fits(model, {name: torch.zeros(20) for name in model}, "other")


def test_optimizer_state_becomes_plain() -> None:
    state = {
        "state": defaultdict(dict, {0: {"step": np.float64(3), "m": np.ones(2), "ok": np.bool_(True)}}),
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0], "name": None, "dtype": torch.float32}],
    }
    plain = plain_state(state)
    assert type(plain["state"]) is dict
    assert type(plain["state"][0]["step"]) is float
    assert type(plain["state"][0]["ok"]) is bool
    assert torch.equal(plain["state"][0]["m"], torch.ones(2, dtype=torch.float64))
    assert plain["param_groups"] == state["param_groups"]


def test_a_view_of_a_large_buffer_is_saved_as_itself_only() -> None:
    assert plain_state(torch.zeros(1000)[:2]).untyped_storage().nbytes() == 8


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"param_groups": [{"hook": print}]}, r"optimizer\['param_groups'\]\[0\]\['hook'\] is a builtin_function"),
        ({"state": {("a", 1): 2}}, r"optimizer\['state'\] has the key \('a', 1\)"),
        ({"seen": {1, 2}}, r"optimizer\['seen'\] is a set"),
    ],
)
def test_other_optimizer_state_is_refused_by_its_place(state: dict[str, Any], told: str, tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    writer.save(snapshot(optimizer=state), header(), writer.staging())
    with pytest.raises(CheckpointError, match=told):
        writer.flush(WAIT_S)
    assert rounds_in(tmp_path) == []
