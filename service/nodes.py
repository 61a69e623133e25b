"""Taking nodes out of use and back: a user's word on a node, without HTTP or SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.errors import ConflictError, InvalidError, NotFoundError
from service.machines import has_own_name
from service.records import Duty, NodeMark, NodeView
from service.store.nodes import NodeStore
from service.store.telemetry import TelemetryStore
from workers.errors import FieldProblem

MAX_REASON_CHARS = 500
_DONE = {Duty.ACTIVE: "may be used again", Duty.DRAINED: "is drained", Duty.QUARANTINED: "is quarantined"}


@dataclass(frozen=True, slots=True)
class Nodes:
    """``wake`` tells the reconciler that there is something new to look at; it must not block."""

    store: NodeStore
    telemetry: TelemetryStore
    clock: Callable[[], float]
    wake: Callable[[], None]

    async def set_duty(self, node: str, duty: Duty, document: object) -> None:
        """Say what a node may be used for; it is named by its id, a unique beginning of it, or its name.

        ``document`` is ``{"reason": text}`` or ``{}``. To take it out of use once more for the same reason, or for
        none, changes nothing. Raises NotFoundError, ConflictError when several nodes are meant, InvalidError.
        """
        reason = _reason(document)
        alive = await self._alive()
        found = _found(node, alive)
        known = (await self.store.node_marks()).get(found.node_id)
        name = found.name if has_own_name(found, alive) else ""
        mark = NodeMark(node_id=found.node_id, name=name, duty=duty, actor="admin", reason=reason, since=self.clock())
        if known is not None and _says_the_same(known, mark):
            return
        told = f": {reason}" if reason else ""
        await self.store.mark_node(mark, f"Node {found.name} {_DONE[duty]}{told}.")
        self.wake()

    async def _alive(self) -> list[NodeView]:
        stored = await self.telemetry.cluster()
        return [node for node in (stored.view.nodes if stored else ()) if node.is_alive]


def _says_the_same(known: NodeMark, mark: NodeMark) -> bool:
    """An ``uncordon`` never does: what was lost until then no longer counts."""
    is_same = (known.duty, known.actor) == (mark.duty, mark.actor) and mark.reason in ("", known.reason)
    return is_same and mark.duty is not Duty.ACTIVE


def _found(wanted: str, alive: Sequence[NodeView]) -> NodeView:
    exact = [node for node in alive if node.node_id == wanted]
    found = exact or [node for node in alive if node.name == wanted or (wanted and node.node_id.startswith(wanted))]
    if not found:
        names = ", ".join(f"{node.name} ({node.node_id[:8]})" for node in alive[:10]) or "none"
        raise NotFoundError(f"there is no living node {wanted[:80]!r}; GET /api/v1/cluster lists them: {names}")
    if len(found) > 1:
        ids = ", ".join(node.node_id[:12] for node in found[:10])
        raise ConflictError(f"{wanted[:80]!r} means {len(found)} nodes ({ids}); give one's whole id")
    return found[0]


def _reason(document: object) -> str:
    if not isinstance(document, dict):
        raise InvalidError("the body is refused", [FieldProblem("", 'send {"reason": "why"}, or no body')])
    if unknown := sorted(document.keys() - {"reason"}):
        raise InvalidError("the body is refused", [FieldProblem(f"/{unknown[0]}", "unknown; the only key is `reason`")])
    reason = document.get("reason", "")
    if not isinstance(reason, str) or len(reason) > MAX_REASON_CHARS:
        told = f"must be a text of at most {MAX_REASON_CHARS} characters"
        raise InvalidError("the body is refused", [FieldProblem("/reason", told)])
    return reason.strip()
