"""Notes its process id in its folder; on SIGTERM notes that it saved, and ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    Path("reconciler.part").write_text(str(os.getpid()))
    Path("reconciler.part").rename("reconciler.pid")  # whoever finds it reads a number
    signal.sigwait([signal.SIGTERM])
    Path("saved").write_text("yes")


if __name__ == "__main__":
    main()
