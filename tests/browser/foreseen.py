"""What a controller foresees of one job, and what its workers tell of their memory: figures that fit together."""

from __future__ import annotations

from workers.measures import Footprint, Forecast, Prediction


def forecast(workers: int, batch: int, speed: float, tried: tuple[int, ...]) -> Forecast:
    """By ``speed`` samples a second of one worker; the further from what was tried, the less is known."""

    def prediction(size: int, of_batch: int, doublings: int) -> Prediction:
        told = speed * size**0.85 * (2 * of_batch / (of_batch + batch))
        is_seen = size in tried and of_batch == batch
        return Prediction(
            num_workers=size,
            global_batch=of_batch,
            samples_per_s=told,
            error=0.03 if is_seen else 0.12 + 0.1 * doublings,
            measured=1.02 * told if is_seen else None,
            num_steps=64 if is_seen else 0,
        )

    return Forecast(
        num_workers=workers,
        global_batch=batch,
        sizes=tuple(prediction(size, batch, size - 2) for size in (1, 2, 3, 4)),
        batches=tuple(prediction(workers, int(batch * 2**n), abs(n)) for n in (-2, -1, 0, 1, 2)),
    )


def footprint(rank: int) -> Footprint:
    """Of a worker with a limit of 1 GB."""
    return Footprint(
        peak_bytes=712_000_000 + 30_000_000 * rank,
        limit_bytes=1_000_000_000,
        fixed_bytes=402_000_000,
        sample_bytes=7_400_000.0,
    )
