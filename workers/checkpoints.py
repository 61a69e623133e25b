"""The form of a checkpoint in storage, readable without torch.

One checkpoint is one folder, complete once its ``manifest.json`` exists (written last, by rename):

    <attempt>-<lineage>-<round>-<generation>/
        weights.safetensors      parameters and buffers, by their names in the model
        state.pt                 optimizer, scaler and random state (torch, weights_only)
        manifest.json            CheckpointInfo, the Plan's sections, checksums of the files
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from workers.status import CheckpointInfo

MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
STATE = "state.pt"


def folder_name(attempt: int, lineage: int, round: int, generation: int) -> str:
    """The folder of one checkpoint; sorts as its parts do."""
    return f"{attempt:04d}-{lineage:04d}-{round:09d}-{generation:05d}"


def read_manifest(folder: Path) -> dict[str, object] | None:
    """The manifest of a complete checkpoint, or None where there is none or it cannot be read."""
    try:
        document = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) and "info" in document else None


def read_info(folder: Path) -> CheckpointInfo | None:
    """What a complete checkpoint says of itself, or None."""
    document = read_manifest(folder)
    if document is None or not isinstance(document["info"], dict):
        return None
    try:
        return CheckpointInfo(**document["info"])
    except TypeError:
        return None


def list_checkpoints(root: Path) -> list[CheckpointInfo]:
    """All complete checkpoints under a job's checkpoint folder, oldest first."""
    if not root.is_dir():
        return []
    found = (read_info(folder) for folder in root.iterdir() if folder.is_dir())
    return sorted((info for info in found if info is not None), key=lambda info: info.order)


def is_intact(folder: Path) -> bool:
    """Whether every file has the checksum that the manifest names; reads all bytes."""
    document = read_manifest(folder)
    sums = document.get("sha256") if document else None
    if not isinstance(sums, dict):
        return False
    return all((folder / name).is_file() and file_sha256(folder / name) == digest for name, digest in sums.items())


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest_text(info: CheckpointInfo, sha256: dict[str, str], plan: dict[str, object]) -> str:
    """The manifest's JSON text; ``plan`` holds the plan's sections for whoever reads it later."""
    return json.dumps({"info": asdict(info), "sha256": sha256, "plan": plan}, indent=1)
