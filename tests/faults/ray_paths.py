"""Which calls on Ray one call of the cluster's port makes, by the adapter's source, and where a reconciler dies."""

from __future__ import annotations

import ast
from pathlib import Path

import service

ADAPTER = Path(service.__path__[0]) / "cluster.py"
CALLS = frozenset({"_ask", "_blocking"})
"""By these the adapter speaks to Ray, and ``ray_calls`` counts them."""

JOB, SWEEP, STRAY = "job", "sweep", "stray"
POINTS = (
    ("start_controller.1", JOB),  # there is an actor, which nobody has prepared
    ("start_controller.2", JOB),
    ("direct.2", JOB),
    ("keep_spares.1", JOB),
    ("end_controller.1", JOB),
    ("ask_search.1", SWEEP),  # there is a sweep's process, which nobody has asked
    ("ask_search.2", SWEEP),
    ("start_controller.2", SWEEP),  # a trial's, of which the sweep's process was told
    ("end_search.1", SWEEP),
    ("end_pools.1", SWEEP),
    ("kill.1", STRAY),
    ("kill.2", STRAY),
)
"""The calls on Ray after which a reconciler dies there, and what brings them about."""

WHOLE = "the last or only call of its method: `test_crash_points` has it, after its effect"
LOOK = "it looks, or it is this driver's own coming or going: nothing of it stays on Ray"
LEFT_OUT = {
    "look.1": LOOK,
    "connect.1": LOOK,
    "connect.2": LOOK,
    "close.1": LOOK,
    "names.1": LOOK,
    "view.1": LOOK,
    "who_sees.1": LOOK,
    "direct.1": LOOK,
    "demand.1": WHOLE,
    "end_controller.2": WHOLE,
    "start_controller.3": "a trial's where its sweep's process had to be found first: as start_controller.2 of a sweep",
    "end_search.2": "its answer is the death of the sweep's process",
    "end_search.3": "kill.1, of a sweep's process that is silent",
    "end_search.4": "kill.2, which is a trial's, never a sweep's",
    "end_search.5": "kill.3, of a sweep's process that is silent: the last call",
    "kill.3": "a trial's whose process had to be killed as it did not let it go: as kill.2, a call later",
}
"""The other calls, and why no reconciler has to die after them."""


def points(source: str) -> frozenset[str]:
    """``method.n`` for each call on Ray that one call of a public method of ``Cluster`` may make."""
    found = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == "Cluster")
    methods = {node.name: node for node in found.body if isinstance(node, ast.AsyncFunctionDef)}
    most = {name: _most(node.body, methods) for name, node in methods.items() if not name.startswith("_")}
    return frozenset(f"{name}.{number}" for name, num_calls in most.items() for number in range(1, num_calls + 1))


def _most(nodes: list[ast.stmt] | list[ast.expr], methods: dict[str, ast.AsyncFunctionDef]) -> int:
    return sum(_most_of(node, methods) for node in nodes)


def _most_of(node: ast.AST, methods: dict[str, ast.AsyncFunctionDef]) -> int:
    """On the longest way through; of a loop one passage, and what is only passed on to be called does not count."""
    match node:
        case ast.Lambda() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return 0
        case ast.If():
            return _most_of(node.test, methods) + max(_most(node.body, methods), _most(node.orelse, methods))
        case ast.IfExp():
            return _most_of(node.test, methods) + max(_most_of(node.body, methods), _most_of(node.orelse, methods))
        case ast.Try():
            handled = max((_most(handler.body, methods) for handler in node.handlers), default=0)
            return handled + _most([*node.body, *node.orelse, *node.finalbody], methods)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)) if name in CALLS:
            return 1 + _most([*node.args, *(keyword.value for keyword in node.keywords)], methods)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)) if name in methods:
            return _most(methods[name].body, methods) + _most(node.args, methods)
        case _:
            return sum(_most_of(child, methods) for child in ast.iter_child_nodes(node))
