"""Once there is a file ``go`` it tells what it waits for; it waits on."""

from __future__ import annotations

import asyncio
from pathlib import Path

from service.supervise.pulse import beating


async def main() -> None:
    async with beating():
        while not Path("go").exists():
            await asyncio.sleep(0.02)
        print('{"event": "the database is away", "error": "on purpose"}', flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
