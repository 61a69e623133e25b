"""Ports of loopback: which are free, and which stay so."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.supervise import ports
from service.supervise.ports import PortTakenError, free_port, is_free, listen, speaks


@pytest.mark.parametrize(("begin", "is_kept_back"), [("20050", True), ("20001", False), (None, False)])
def test_a_port_is_one_that_the_system_gives_to_nobody_where_it_keeps_some_back(
    begin: str | None, is_kept_back: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "range"
    if begin:
        file.write_text(f"{begin}\t60999\n")
    monkeypatch.setattr(ports, "GIVEN", file)
    monkeypatch.setattr(ports, "NUM_TRIES", 50)
    port = free_port()
    assert is_free(port)
    assert (20_000 <= port < 20_050) == is_kept_back


def test_a_taken_port_is_told_with_its_remedy() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert not speaks(port, 0.1)  # the kernel accepts, and nobody is at work behind it
        assert not is_free(port)
        with pytest.raises(PortTakenError, match=f"port {port} .* choose another by --port"):
            listen("127.0.0.1", port)
