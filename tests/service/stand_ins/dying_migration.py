"""Upgrades a database, and dies as by SIGKILL once so many migrations are made: ``URL STEPS``."""

from __future__ import annotations

import os
import signal
import sys

from alembic.runtime.migration import HeadMaintainer, MigrationStep

from service.migrations.upgrade import upgrade

_note = HeadMaintainer.update_to_step
_noted: list[MigrationStep] = []


def note_and_die(self: HeadMaintainer, step: MigrationStep) -> None:
    _note(self, step)
    _noted.append(step)
    if len(_noted) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    HeadMaintainer.update_to_step = note_and_die  # type: ignore[method-assign]  # in this process alone
    upgrade(sys.argv[1])
