"""Runs the real supervisor of a home over the stand-ins: ``python -m ... HOME API_MODULE [HANGS]``.

Only the program that ``HANGS`` names is soon taken for hung: on a busy machine a healthy one may be silent for seconds.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from service.settings import environment
from service.supervise import supervisor
from service.supervise.child import Child, Program
from service.supervise.home import Home
from service.supervise.lock import ServeLock
from service.supervise.ports import listen
from service.supervise.supervisor import Address, Mark, Parts, Supervisor

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 4.0  # signs of life come every second
NEVER_S = 3600.0


def tell(mark: Mark, about: str, text: str) -> None:
    print(f"{mark} {about} {text}", flush=True)


def main() -> int:
    # The stand-ins answer, or end, within milliseconds.
    supervisor.TICK_S, supervisor.PROBE_TIMEOUT_S = 0.02, 0.1
    home, api_module = Home(Path(sys.argv[1])), sys.argv[2]
    home.prepare()
    reading, _writing = os.pipe()
    patience_s = {name: PATIENCE_S if name in sys.argv[3:] else NEVER_S for name in ("api", "reconciler")}
    child = {**environment(), "PYTHONPATH": str(ROOT)}
    with ServeLock(home.lock_file) as lock, listen("127.0.0.1", 0) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1])
        lock.announce(address.url)
        api = Program(
            name="api",
            module=api_module,
            arguments=(str(listener.fileno()),),
            environment=child,
            log_file=home.logs / "api.log",
            cwd=home.path,
            patience_s=patience_s["api"],
            descriptors=(listener.fileno(),),
        )
        reconciler = Program(
            name="reconciler",
            module="tests.service.stand_ins.reconciler",
            environment=child,
            log_file=home.logs / "reconciler.log",
            cwd=home.path,
            patience_s=patience_s["reconciler"],
        )
        parts = Parts(address=address, api=Child(api, reading), reconciler=Child(reconciler, reading), head=None)
        return Supervisor(parts, tell, lambda: tell(Mark.NOTE, "ready", address.url)).run()


if __name__ == "__main__":
    sys.exit(main())
