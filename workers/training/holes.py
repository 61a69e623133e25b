"""Parts of a file that take no room on the disk."""

from __future__ import annotations

import ctypes

_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # linux/falloc.h


def punch_hole(descriptor: int, begin: int, end: int) -> bool:
    """Free the blocks of these bytes, which read as zeros then; False where the file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    fallocate = libc.fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    done: int = fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, begin, end - begin)
    return done == 0
