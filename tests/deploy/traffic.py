"""Who may speak to whom by the network policies, as Kubernetes reads them: both ends have to allow it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any

from tests.deploy.manifests import NAMESPACE, manifests


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """A pod of ours, or with another ``namespace`` one of somebody else's, whose own policies let it speak."""

    labels: Mapping[str, str]
    namespace: str = NAMESPACE


@dataclass(frozen=True, slots=True)
class Outside:
    """What is no pod: a machine of the cluster, the API of Kubernetes, the world."""

    address: str


def may_reach(source: End | Outside, target: End | Outside, port: int) -> bool:
    """Whether a TCP connection is let through."""
    return _allows("Egress", source, target, port) and _allows("Ingress", target, source, port)


def _allows(direction: str, subject: End | Outside, other: End | Outside, port: int) -> bool:
    if isinstance(subject, Outside) or subject.namespace != NAMESPACE:
        return True
    specs = [m["spec"] for m in manifests() if m["kind"] == "NetworkPolicy"]
    ours = [s for s in specs if direction in s["policyTypes"] and _selects(s["podSelector"], subject.labels)]
    key, peers = ("ingress", "from") if direction == "Ingress" else ("egress", "to")
    rules = [rule for spec in ours for rule in spec.get(key, ())]
    return not ours or any(_has_port(rule, port) and _has_peer(rule.get(peers), other) for rule in rules)


def _has_port(rule: Mapping[str, Any], port: int) -> bool:
    ports = rule.get("ports")
    tcp = [p for p in ports or () if p.get("protocol", "TCP") == "TCP"]
    return ports is None or any(p["port"] <= port <= p.get("endPort", p["port"]) for p in tcp)


def _has_peer(peers: list[Mapping[str, Any]] | None, other: End | Outside) -> bool:
    return peers is None or any(_is_peer(peer, other) for peer in peers)


def _is_peer(peer: Mapping[str, Any], other: End | Outside) -> bool:
    """Blocks of addresses never mean pods: their addresses are gone tomorrow, and not every network looks at them."""
    if isinstance(other, Outside):
        return "ipBlock" in peer and _holds(peer["ipBlock"], other.address)
    if "ipBlock" in peer:
        return False
    if "namespaceSelector" in peer:
        is_there = _selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": other.namespace})
    else:
        is_there = other.namespace == NAMESPACE
    return is_there and _selects(peer.get("podSelector", {}), other.labels)


def _holds(block: Mapping[str, Any], address: str) -> bool:
    found = ip_address(address)
    return found in ip_network(block["cidr"]) and not any(found in ip_network(part) for part in block.get("except", ()))


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels", "matchExpressions"}
    assert all(e["operator"] == "In" for e in selector.get("matchExpressions", ()))
    return all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items()) and all(
        labels.get(e["key"]) in e["values"] for e in selector.get("matchExpressions", ())
    )
