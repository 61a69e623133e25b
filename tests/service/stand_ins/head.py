"""Speaks first, as each part of a Ray head does: ``python -m ... PORT --temp-dir=FOLDER``, which marks it as ours."""

from __future__ import annotations

import sys

from service.supervise.ports import listen


def main() -> None:
    with listen("127.0.0.1", int(sys.argv[1])) as listener:
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"settings")


if __name__ == "__main__":
    main()
