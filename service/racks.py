"""Where a job's workers sit and how links between them are, as its group found when it began. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.exchange_options import used_over
from workers.rack_words import link_in_words, one_level_in_words


def racks_document(observed: Mapping[str, Any]) -> dict[str, Any] | None:
    """``{found_by, told, inside, across, workers, disputes}``; None where nobody looked.

    ``inside`` and ``across`` are ``{bytes_per_s, latency_s}`` of the median link inside racks and between them. A
    worker: ``{worker_id, rank, rack, label}``. A dispute between labels and links: ``{worker_ids, node_ids,
    is_one_label, bytes_per_s, latency_s, told}``.
    """
    found = observed.get("racks")
    if not found:
        return None
    workers = sorted((w for w in observed["workers"] if w["worker_id"] in found["racks"]), key=lambda w: w["rank"] or 0)
    return {
        **{key: found[key] for key in ("found_by", "told", "inside", "across", "disputes")},
        "workers": [
            {
                "worker_id": worker["worker_id"],
                "rank": worker["rank"],
                "rack": found["racks"][worker["worker_id"]],
                "label": worker["rack_label"],
            }
            for worker in workers
        ],
    }


def racks_in_words(observed: Mapping[str, Any]) -> list[str]:
    """What is known of racks, and what labels tell otherwise; empty where nobody looked."""
    found = observed.get("racks")
    if not found:
        return []
    return [found["told"], *(f"Labels and links differ: {one['told']}." for one in found["disputes"])]


def racks_of(observed: Mapping[str, Any]) -> tuple[int, ...]:
    """The number of each worker's rack in the last group of several, which may have parted; empty: nobody looked."""
    return tuple(observed.get("last_racks", ()))


def _racks_now(observed: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple((observed.get("racks") or {}).get("racks", {}).values())


def one_level(observed: Mapping[str, Any], exchange: str) -> str:
    """Why gradients travel otherwise than the name of their exchange says, in a sentence; empty where they do not."""
    racks = _racks_seen(observed)
    told = one_level_in_words(exchange, racks) if racks else ""
    return f"{told[0].upper()}{told[1:]}." if told else ""


def used(observed: Mapping[str, Any], exchange: str) -> str:
    """What the exchange of this name comes to where workers sit: of one level only its own format."""
    racks = _racks_seen(observed)
    return used_over(exchange, racks) if len(racks) > 1 else exchange


def _racks_seen(observed: Mapping[str, Any]) -> tuple[int, ...]:
    return _racks_now(observed) if observed.get("workers") else racks_of(observed)


def doubts(observed: Mapping[str, Any], node_id: str, names: Mapping[str, str]) -> list[str]:
    """What links say against a node's label, in sentences; ``names`` are nodes' by id."""
    found = observed.get("racks") or {}
    return [_doubt(one, node_id, names) for one in found.get("disputes", ()) if node_id in one["node_ids"]]


def _doubt(dispute: Mapping[str, Any], node_id: str, names: Mapping[str, str]) -> str:
    [other] = [one for one in dispute["node_ids"] if one != node_id] or [node_id]
    link = link_in_words(dispute["bytes_per_s"], dispute["latency_s"])
    said, seen = (
        ("the same rack as", "between racks") if dispute["is_one_label"] else ("another rack than", "inside one")
    )
    name = names.get(other, other[:8])
    node = f"node {name}" if name else "a node that is gone"
    return f"By label it is in {said} {node}, but their link ({link}) is one {seen}."
