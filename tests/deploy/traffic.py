"""Who may speak to whom by the network policies, as Kubernetes reads them: both ends have to allow it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.deploy.manifests import NAMESPACE, manifests


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """A pod of ours, or with another ``namespace`` one of somebody else's, whose own policies let it speak."""

    labels: Mapping[str, str]
    namespace: str = NAMESPACE


def may_reach(source: End, target: End, port: int) -> bool:
    """Whether a TCP connection is let through."""
    return _allows("Egress", source, target, port) and _allows("Ingress", target, source, port)


def _allows(direction: str, subject: End, other: End, port: int) -> bool:
    if subject.namespace != NAMESPACE:
        return True
    specs = [m["spec"] for m in manifests() if m["kind"] == "NetworkPolicy"]
    ours = [s for s in specs if direction in s["policyTypes"] and _selects(s["podSelector"], subject.labels)]
    key, peers = ("ingress", "from") if direction == "Ingress" else ("egress", "to")
    rules = [rule for spec in ours for rule in spec.get(key, ())]
    return not ours or any(_has_port(rule, port) and _has_peer(rule.get(peers), other) for rule in rules)


def _has_port(rule: Mapping[str, Any], port: int) -> bool:
    ports = rule.get("ports")
    return ports is None or any(p["port"] <= port <= p.get("endPort", p["port"]) for p in ports)


def _has_peer(peers: list[Mapping[str, Any]] | None, other: End) -> bool:
    """Blocks of addresses are left out: they are for the world outside."""
    return peers is None or any(_is_peer(peer, other) for peer in peers if "ipBlock" not in peer)


def _is_peer(peer: Mapping[str, Any], other: End) -> bool:
    if "namespaceSelector" in peer:
        is_there = _selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": other.namespace})
    else:
        is_there = other.namespace == NAMESPACE
    return is_there and _selects(peer.get("podSelector", {}), other.labels)


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels", "matchExpressions"}
    assert all(e["operator"] == "In" for e in selector.get("matchExpressions", ()))
    return all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items()) and all(
        labels.get(e["key"]) in e["values"] for e in selector.get("matchExpressions", ())
    )
