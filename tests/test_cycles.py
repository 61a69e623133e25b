"""No module of ours needs, over whatever others, itself."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_no_imports_go_round() -> None:
    graph = grimp.build_graph("service", "tuning", "workers", exclude_type_checking_imports=True)
    needs = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(tuple(TopologicalSorter(needs).static_order())) == len(needs)
