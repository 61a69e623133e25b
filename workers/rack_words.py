"""What is known of racks, in sentences. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from workers.exchange_options import used_over
from workers.racks import FAST_BYTES_PER_S, LABEL, Dispute, FoundBy, Topology

_LATE = "links were not all measured within a second"


def in_words(topology: Topology) -> str:
    """One sentence: how many racks there are, what they are known by, and how links are."""
    num_racks = len(topology.members)
    inside = link_in_words(topology.inside_bytes_per_s, topology.inside_latency_s)
    across = link_in_words(topology.across_bytes_per_s, topology.across_latency_s)
    match topology.found_by:
        case FoundBy.NOTHING:
            return (
                f"Links were not all measured within a second, and not all nodes have the label {LABEL}, so all "
                "workers count as one rack."
            )
        case FoundBy.LABELS:
            why = "two workers have no other link to compare theirs with" if len(topology.racks) == 2 else _LATE
            return f"Workers sit in {_plural(num_racks)} by the label {LABEL} of their nodes; {why}."
        case FoundBy.LINKS if num_racks == 1:
            fast = link_in_words(FAST_BYTES_PER_S, None)
            told = (
                f"Links between workers carry about {inside}, and none is clearly slower, where what is above {fast} "
            )
            told += "counts as that, so they count as one rack."
            return told if inside else "One rack."
        case FoundBy.LINKS if not inside:
            return f"No link is as fast as one inside a rack ({across}), so each worker counts as a rack."
        case FoundBy.LINKS:
            return f"Workers sit in {_plural(num_racks)} by what links carry: {inside} inside, {across} between them."


def one_level_in_words(exchange: str, racks: Sequence[int]) -> str:
    """Why such an exchange is another among ranks in these racks, without a full stop; empty where it is not."""
    used = used_over(exchange, racks)
    if used == exchange or len(racks) < 2:
        return ""
    is_one = max(racks) == 0
    why = "all workers count as one rack" if is_one else "each worker counts as a rack of its own"
    links = "no link is" if is_one else "all links are"
    return f"{why}, so {links} between racks: gradients travel as {used} instead of {exchange}"


def dispute_in_words(dispute: Dispute, labels: tuple[str, ...], name: Callable[[int], str]) -> str:
    """What labels say of two ranks and what was measured, without a full stop; ``name`` tells a rank's worker."""
    a, b = dispute.ranks
    link = link_in_words(dispute.bytes_per_s, dispute.latency_s)
    said = (
        f"both have the rack {labels[a]!r}" if dispute.is_one_label else f"have racks {labels[a]!r} and {labels[b]!r}"
    )
    seen = "one between racks" if dispute.is_one_label else "one inside a rack"
    return f"{name(a)} and {name(b)} {said} by label, but their link ({link}) is {seen}"


def link_in_words(bytes_per_s: float | None, latency_s: float | None) -> str:
    """``48 Mbit/s and 0.21 ms``; empty where nothing is known."""
    told = [] if bytes_per_s is None else [f"{round(bytes_per_s * 8 / 1e6):,} Mbit/s"]
    return " and ".join([*told, *([] if latency_s is None else [f"{latency_s * 1e3:.2g} ms"])])


def _plural(num_racks: int) -> str:
    return "one rack" if num_racks == 1 else f"{num_racks} racks"
