"""What an advisor of exchanges is told of a group behind a slow link."""

from __future__ import annotations

from dataclasses import replace

from workers.advisors.exchange import Link, Situation
from workers.measures import SchemeCost

BYTES = {"none": 4.0, "bf16": 2.0, "fp16": 2.02, "int8": 1.02, "int4": 0.52}
COSTS = {name: SchemeCost(bytes_a_value=b, seconds_a_million=0.0) for name, b in BYTES.items()}


def with_codecs(seconds_a_million: float) -> dict[str, SchemeCost]:
    """Costs of schemes that all take so long to encode and decode, but for gradients as they are."""
    return {n: replace(cost, seconds_a_million=0.0 if n == "none" else seconds_a_million) for n, cost in COSTS.items()}


def situation(scheme: str = "none", exchange_s: float = 1.0, hidden_s: float = 0.0, step_s: float = 1.2) -> Situation:
    """A link that takes ``exchange_s`` for one million dense values, of which backward hides ``hidden_s``."""
    took_s = exchange_s * BYTES[scheme] / BYTES["none"]
    link = Link(exchange_s=took_s, exposed_s=max(0.0, took_s - hidden_s))
    allowed = tuple(BYTES)
    return Situation(
        scheme=scheme, allowed=allowed, costs=COSTS, num_ranks=4, num_values=1_000_000, step_s=step_s, link=link
    )
