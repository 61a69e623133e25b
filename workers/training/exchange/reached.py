"""Which parameters a backward pass leads to: the others get no gradient by it, and need not be waited for."""

from __future__ import annotations

from collections.abc import Collection

import torch


def unreached(loss: torch.Tensor, candidates: Collection[torch.Tensor]) -> list[torch.Tensor]:
    """Those of the leaves ``candidates`` to which no gradient of ``loss`` flows. Looks at the graph as far as it must.

    What a ``torch.autograd.Function`` computes in a backward pass of its own (as checkpointing with
    ``use_reentrant=True``) is not in the graph: leaves of that count as not reached.
    """
    wanted = {id(leaf): leaf for leaf in candidates if leaf.requires_grad}
    frozen = [leaf for leaf in candidates if not leaf.requires_grad]
    wanted.pop(id(loss), None)
    ahead = [loss.grad_fn]
    seen = {*ahead}
    while ahead and wanted:
        node = ahead.pop()
        for following, _ in () if node is None else node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                ahead.append(following)
                wanted.pop(id(getattr(following, "variable", None)), None)
    return [*frozen, *wanted.values()]
