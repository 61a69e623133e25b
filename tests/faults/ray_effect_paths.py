"""Which effects on Ray one blocking call of the adapter has, by the source, and between which a reconciler dies."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import service
import workers

SERVICE, WORKERS = Path(service.__path__[0]), Path(workers.__path__[0])
ADAPTER = SERVICE / "cluster.py"
SOURCES = (ADAPTER, WORKERS / "control" / "roster.py", WORKERS / "control" / "spares.py")
"""The adapter, and what it has its blocking calls do."""

BLOCKING = "_blocking"
HELD = {"_roster": "Roster", "_spares": "Spares"}
REMOTE = "remote"
EFFECTS = frozenset({REMOTE, "kill", "cancel", "internal_kv_put", "internal_kv_del", "request_resources"})
"""By these something changes on Ray."""

SPARES, POOL, SUPERFLUOUS, NOTES = "spares", "pool", "superfluous", "notes"
POINTS = (
    ("keep_spares/begin_spare", SPARES),  # there is a spare, and not yet as many as are wanted
    ("end_pools/dismiss", POOL),  # another process waits in the pool, and nobody follows its sweep any more
    ("keep_spares/take", SUPERFLUOUS),  # nobody can take the spare any more, and it lives
    ("keep_spares/_kill", SUPERFLUOUS),  # another one lives that is not wanted
    ("keep_spares/give_back", NOTES),
    ("keep_spares/unhost", NOTES),
)
"""The effects after the first of which a reconciler dies, and what brings them about."""

LEFT_OUT = {
    "keep_spares/renew": "it changes nothing but when a spare's lease of minutes ends; each reconciler begins with it",
}
"""The other effects, and why no reconciler has to die after them."""


def effects(sources: Sequence[str]) -> frozenset[str]:
    """``method/effect`` for each effect of a blocking call of ``Cluster`` that may have several.

    Where one is reached twice, or lies beside another of its name, the second is ``method/effect-2``.
    """
    code = _Code(sources)
    return frozenset(effect for method, body in code.of("Cluster") for effect in code.several(method, body))


class _Code:
    """Functions by their names, methods by their classes' too."""

    def __init__(self, sources: Sequence[str]) -> None:
        self._bodies: dict[tuple[str, str], list[ast.stmt]] = {}
        for node in (node for source in sources for node in ast.parse(source).body):
            within = node.name if isinstance(node, ast.ClassDef) else ""
            for function in node.body if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    self._bodies[within, function.name] = function.body

    def of(self, within: str) -> Iterator[tuple[str, list[ast.stmt]]]:
        """The methods of a class."""
        return ((name, body) for (owner, name), body in self._bodies.items() if owner == within)

    def several(self, method: str, body: list[ast.stmt]) -> Iterator[str]:
        """The effects of each of the method's blocking calls that may have more than one."""
        for call in (node for part in body for node in ast.walk(part)):
            match call:
                case ast.Call(func=ast.Attribute(attr=name), args=[blocking, *_]) if name == BLOCKING:
                    found = list(self._effects(blocking, ("Cluster", method), 1))
                    if sum(count for _, count in found) > 1:
                        yield from _numbered(method, [effect for effect, _ in found])

    def _effects(self, node: ast.AST, at: tuple[str, str], count: int) -> Iterator[tuple[str, int]]:
        """Each effect's name, with 2 for one in a loop; what is only mentioned is taken for called."""
        if isinstance(node, ast.For | ast.While | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            count = 2
        match node:
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="self"), attr=held), attr=name) if held in HELD:
                called = (HELD[held], name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                called = (at[0], name)
            case ast.Name(id=name):
                called = ("", name)
            case _:
                called = ("", "")
        for part in self._bodies.get(called, []):
            yield from self._effects(part, called, count)
        match node:
            case ast.Attribute(value=ast.Name(id="ray"), attr=name) if name == REMOTE:
                pass  # it only decorates
            case ast.Attribute(value=ast.Attribute(attr=asked), attr=name) if name == REMOTE:
                yield asked, count
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in EFFECTS:
                yield at[1], count
        for child in ast.iter_child_nodes(node):
            yield from self._effects(child, at, count)


def _numbered(method: str, found: Sequence[str]) -> Iterator[str]:
    seen = Counter[str]()
    for effect in found:
        seen[effect] += 1
        yield f"{method}/{effect}" + (f"-{seen[effect]}" if seen[effect] > 1 else "")
