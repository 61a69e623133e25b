"""Tells what it waits for, and waits."""

from __future__ import annotations

import asyncio

from service.supervise.pulse import beating


async def main() -> None:
    print('{"event": "the database is away", "error": "on purpose"}', flush=True)
    async with beating():
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
