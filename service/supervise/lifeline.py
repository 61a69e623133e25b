"""Runs a module as ``__main__`` for as long as the process that started it lives.

``python -m service.supervise.lifeline LIFELINE PULSE MODULE``: the lifeline is the reading end of a
pipe whose writing end only the parent holds. When the parent is gone, however it went, this
process ends at once, as by SIGKILL: what a kill leaves behind is what every part is built to bear.
The pulse is the writing end of one that the parent reads: there the module's signs of life go.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading

from service.supervise.pulse import give_to

EXIT_CODE_ORPHANED = 70


def main() -> None:
    descriptor, pulse, module = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    os.set_inheritable(descriptor, False)
    threading.Thread(target=_watch, args=(descriptor,), name="lifeline", daemon=True).start()
    give_to(pulse)
    sys.argv = sys.argv[3:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _watch(descriptor: int) -> None:
    # The parent never writes: the read returns when the last writing end is closed.
    os.read(descriptor, 1)
    os._exit(EXIT_CODE_ORPHANED)


if __name__ == "__main__":
    main()
