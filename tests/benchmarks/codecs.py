"""What encoding and decoding take on a GPU: by one kernel each way against torch's operators, in turns.

A round trip is one encoding, with what it leaves out, and one decoding; in a bucket of the usual size. Told are the
device's own time, and what the host takes to hand the work over.

    python -m tests.benchmarks.codecs [--mebibytes N] [--blocks N] [--output FILE]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from tests.benchmarks.command import parser_of, tell_result
from tests.benchmarks.figures import spread_document
from workers.training.device_clock import DeviceClock
from workers.training.exchange import fused
from workers.training.exchange.codecs import Fp16, Int4, Int8, Scaled
from workers.training.exchange.two_four import TwoFour

DEVICE = torch.device("cuda", 0)
TRIPS = 20
"""Of a block, which is timed as a whole."""


@contextmanager
def operators(codec: Scaled) -> Iterator[None]:
    """Without the kernels of this format."""
    found = fused.kernels_for(DEVICE, codec.name)
    fused._found[DEVICE, codec.name] = None
    try:
        yield
    finally:
        fused._found[DEVICE, codec.name] = found


def round_trip(codec: Scaled, numel: int) -> Callable[[], None]:
    values_1N = torch.randn(1, numel, device=DEVICE)
    error_1N, decoded_1N = torch.empty_like(values_1N), torch.empty_like(values_1N)
    payload_1B = torch.empty(1, codec.num_bytes(numel), dtype=torch.uint8, device=DEVICE)

    def once() -> None:
        codec.encode(values_1N, payload_1B, error_1N if codec.has_error else None)
        codec.decode(payload_1B, decoded_1N)

    return once


def block(once: Callable[[], None]) -> tuple[float, float]:
    """Seconds of a trip on the device, and of the host to hand it over, in the mean."""
    torch.cuda.synchronize()
    begun_s, clock = time.perf_counter(), DeviceClock()
    for _ in range(TRIPS):
        once()
    handed_s = time.perf_counter() - begun_s
    clock.stop()
    return clock.elapsed_s() / TRIPS, handed_s / TRIPS


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--mebibytes", type=int, default=25, help="of fp32 values")
    parser.add_argument("--blocks", type=int, default=20)
    given = parser.parse_args()
    for codec in (Fp16(), Int8(), Int4(), TwoFour()):
        assert fused.kernels_for(DEVICE, codec.name) is not None, "there is nothing to compare: no kernels here"
        once = round_trip(codec, given.mebibytes * 2**20 // 4)
        block(once)
        with operators(codec):
            block(once)
        ours, theirs = [], []
        for _ in range(given.blocks):
            ours.append(block(once))
            with operators(codec):
                theirs.append(block(once))
        figures: dict[str, object] = {"codec": codec.name, "mebibytes": given.mebibytes}
        for place, what in enumerate(("device", "host")):
            mine, other = [one[place] for one in ours], [one[place] for one in theirs]
            ratios = [b / a for a, b in zip(mine, other, strict=True)]
            print(
                f"{codec.name}, {given.mebibytes} MiB, {what}: {statistics.median(mine) * 1e6:.0f} us by a kernel, "
                f"{statistics.median(other) * 1e6:.0f} us by operators: {statistics.median(ratios):.2f} times as fast "
                f"({min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} blocks)",
                flush=True,
            )
            figures |= {f"{what}_ratios": ratios, f"{what}_s": spread_document(mine)}
            figures |= {f"{what}_operators_s": spread_document(other)}
        tell_result(given.output, "codecs", ("torch", "triton"), figures)


if __name__ == "__main__":
    main()
