"""Sizes of forward passes where memory runs out, is taken by others, and given back."""

from __future__ import annotations

from tests.training.test_micro import BASE, MIB, NO_LIMIT, held, settle
from workers.training.micro import MicroSize, Room


def test_where_too_much_is_only_an_error_memory_is_run_out_of_once_at_most() -> None:
    sizes, room = MicroSize(None), Room(limit_bytes=400 * MIB, is_forgiving=True)
    lacking = []
    for _ in range(40):
        size = sizes.begin(512, lambda: BASE)
        while held(size) > 400 * MIB:
            lacking.append(size)
            assert sizes.halve(size)
            size = sizes.within(512)
        if sizes.measured(size, 1e-3 / size, round(held(size)), room) is not None:
            break
    assert lacking == [512]
    assert sizes.within(512) == 256


def test_what_smaller_passes_lack_where_larger_ones_came_through_rules_out_none_of_those() -> None:
    """What a library keeps for each size that is tried may leave too little for one that would be smaller."""
    sizes, room, prepared = MicroSize(None), Room(limit_bytes=400 * MIB), set[int]()
    for _ in range(40):
        size = sizes.begin(128, lambda: BASE)
        if len(prepared | {size}) > 3:
            assert size < max(prepared)
            assert sizes.halve(size) == sizes.within(128) == sizes.begin(128, lambda: BASE) == max(prepared)
            assert not sizes.is_trying
            break
        prepared.add(size)
        assert sizes.measured(size, 1e-3 * (1 + 40 / size), BASE, room) is None
    else:
        raise AssertionError("no more than three sizes were tried")
    assert sizes.halve(max(prepared)) == max(prepared) // 2


def shared(mib: int) -> Room:
    return Room(limit_bytes=mib * MIB, is_shared=True)


def test_others_that_take_memory_make_it_smaller_and_what_they_give_back_is_used_again() -> None:
    sizes = MicroSize(None)
    settle(sizes, 1024, lambda s: 1e-3 + 1e-6 * s, held, Room(limit_bytes=400 * MIB))
    assert sizes.watch(lambda: shared(380)) is None
    smaller = sizes.watch(lambda: shared(200))
    assert smaller is not None
    assert smaller.size == sizes.within(1024) == 64
    assert "256 samples a forward pass would take about 356 MiB of the 200 MiB" in smaller.reason
    assert sizes.watch(lambda: shared(200)) is None
    assert sizes.watch(lambda: shared(2000)) is None
    assert settle(sizes, 1024, lambda s: 1e-3 + 1e-6 * s, held, Room(limit_bytes=2000 * MIB)).size == 1024


def test_a_size_at_which_memory_ran_out_is_never_tried_again() -> None:
    sizes = MicroSize(None)
    tried = []
    for _ in range(30):
        size = sizes.begin(256, lambda: BASE)
        tried.append(size)
        while size > 40:
            assert sizes.halve(size)
            size = sizes.within(256)
        if sizes.measured(size, 1e-3 / size, 0, NO_LIMIT) is not None:
            break
    assert max(tried) > 40
    assert sum(size > 40 for size in tried) == 1
    assert 32 <= sizes.within(256) <= 40


def test_a_size_at_which_memory_ran_out_is_tried_again_once_others_have_given_memory_back() -> None:
    sizes = MicroSize(None)
    settle(sizes, 1024, lambda s: 1e-3 + 1e-6 * s, held, Room(limit_bytes=2000 * MIB))
    assert sizes.within(1024) == 1024
    while sizes.within(1024) > 64:
        assert sizes.halve(sizes.within(1024))
    for mib in (200, 240):
        assert sizes.watch(lambda mib=mib: shared(mib)) is None
        assert sizes.begin(1024, lambda: BASE) == 64
        assert not sizes.is_trying
    assert sizes.watch(lambda: shared(2000)) is None
    assert settle(sizes, 1024, lambda s: 1e-3 + 1e-6 * s, held, Room(limit_bytes=2000 * MIB)).size == 1024


def test_a_part_too_small_to_try_sizes_for_is_computed_whole_again_once_memory_is_there_again() -> None:
    sizes = MicroSize(None)
    assert sizes.begin(12, lambda: BASE) == 12
    assert sizes.watch(lambda: shared(200)) is None
    assert sizes.halve(12) == 6
    for mib in (200, 240):
        assert sizes.watch(lambda mib=mib: shared(mib)) is None
        assert sizes.begin(12, lambda: BASE) == 6
    assert sizes.watch(lambda: shared(400)) is None
    assert sizes.begin(12, lambda: BASE) == 12
    assert not sizes.is_trying
