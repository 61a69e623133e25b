"""Notes its process id; on SIGUSR1 its event loop is stuck; on SIGTERM it notes that it saved, and ends."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

from service.supervise.pulse import beating


async def main() -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, threading.Event().wait)
    async with beating():
        await asyncio.sleep(0)  # the first sign is given before anybody learns of this process
        Path("noted").write_text(str(os.getpid()))
        Path("noted").replace("reconciler.pid")  # whole at once: its reader waits only until it is there
        await stop.wait()
    Path("saved").write_text("yes")


if __name__ == "__main__":
    asyncio.run(main())
