"""Runs a module as ``__main__`` for as long as the process that started it lives.

``python -m service.supervise.lifeline DESCRIPTOR MODULE``: the descriptor is the reading end of a
pipe whose writing end only the parent holds. When the parent is gone, however it went, this
process ends at once, as by SIGKILL: what a kill leaves behind is what every part is built to bear.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading

EXIT_CODE_ORPHANED = 70


def main() -> None:
    descriptor, module = int(sys.argv[1]), sys.argv[2]
    os.set_inheritable(descriptor, False)
    threading.Thread(target=_watch, args=(descriptor,), name="lifeline", daemon=True).start()
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _watch(descriptor: int) -> None:
    # The parent never writes: the read returns when the last writing end is closed.
    os.read(descriptor, 1)
    os._exit(EXIT_CODE_ORPHANED)


if __name__ == "__main__":
    main()
