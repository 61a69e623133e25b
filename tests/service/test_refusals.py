from __future__ import annotations

from dataclasses import replace

from service.refusals import MOST_RETRY_S, RETRY_S, Refusal, concerning, noted, refused, without
from service.room import Need
from tests.service.test_queue import queued

HUGE = queued("huge", cpus=1000)


def test_who_needs_no_less_than_what_was_refused_is_put_off_with_it() -> None:
    found = noted((), queued("a", 2, cpus=8), 0.0)
    jobs = [queued("same", 2, cpus=8), queued("more", 3, cpus=9), queued("fewer", 1, cpus=8), queued("less", 2, cpus=7)]
    assert refused(found, jobs, 1.0) == {"same": False, "more": False}
    assert refused(found, jobs, RETRY_S) == {"same": True, "more": True}


def test_it_is_asked_for_again_less_and_less_often() -> None:
    found: tuple[Refusal, ...] = ()
    waits = []
    for _ in range(6):
        found = noted(found, HUGE, 100.0)
        waits.append(found[0].again_s - 100.0)
    assert waits == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S, 8 * RETRY_S, MOST_RETRY_S, MOST_RETRY_S]
    assert len(found) == 1


def test_what_is_refused_to_the_smaller_stands_for_the_larger() -> None:
    large = noted((), queued("large", 4, cpus=8), 0.0)
    assert [old.min for old in noted(large, queued("small", 2, cpus=8), 1.0)] == [2]
    other = replace(queued("gpu", 2), need=Need({"cpus": 1.0, "gpus": 1.0}))
    assert [old.min for old in noted(large, other, 1.0)] == [4, 2]


def test_no_gpus_for_others_are_no_refusal_for_whom_cpus_do_and_the_other_way_round() -> None:
    only, either = Need({"cpus": 1.0, "gpus": 1.0}), Need({"cpus": 1.0, "gpus": 1.0}, {"cpus": 4.0})
    on_gpu, on_any = replace(queued("gpu"), need=only), replace(queued("any"), need=either)
    assert refused(noted((), on_gpu, 0.0), [on_gpu, on_any], 1.0) == {"gpu": False}
    assert refused(noted((), on_any, 0.0), [on_gpu, on_any], 1.0) == {"any": False}


def test_a_refusal_is_forgotten_with_its_jobs_and_when_nodes_come() -> None:
    found = noted((), HUGE, 0.0)
    assert concerning(found, [queued("a")]) == ()
    assert concerning(found, [queued("a"), HUGE]) == found
    assert without(found, [queued("a")]) == found
    assert without(found, [HUGE]) == ()
