"""Whether all machines of a Ray see the storage: workers write checkpoints to it wherever they run. Pure."""

from __future__ import annotations

from pathlib import Path

from service.records import ClusterView

LOCAL_FILE_SYSTEMS = frozenset(
    {"apfs", "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "hfs", "jfs", "ntfs", "overlay", "ramfs", "reiserfs"}
    | {"squashfs", "tmpfs", "ufs", "vfat", "xfs", "zfs"}
)
"""What only the machine that has it mounted can see; others, such as nfs4, cifs or lustre, may be shared."""


def refusal(view: ClusterView, storage: Path, file_system: str) -> str | None:
    """Why this cluster cannot work with this storage, and what to do; None where nothing speaks against it.

    ``file_system`` is the type of what holds the folder. Nodes with one name are on one machine.
    """
    machines = sorted({node.name for node in view.nodes if node.is_alive})
    if len(machines) < 2 or file_system not in LOCAL_FILE_SYSTEMS:
        return None
    return (
        f"the Ray has {len(machines)} machines ({', '.join(machines[:4])}{', ...' if len(machines) > 4 else ''}), "
        f"and the storage {storage} is on a disk of one ({file_system}); "
        "give `serve` a folder that all of them share by --storage"
    )
