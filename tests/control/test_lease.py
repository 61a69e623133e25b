from __future__ import annotations

from workers.control.lease import MAX_TICK_S, Lease


def test_it_expires_after_its_seconds_without_a_call() -> None:
    lease = Lease(lease_s=3, now_s=0)
    assert [lease.tick(float(s)) for s in range(1, 5)] == [False, False, False, True]


def test_a_call_begins_it_anew() -> None:
    lease = Lease(lease_s=2, now_s=0)
    lease.tick(2.0)
    lease.renew()
    assert not lease.tick(4.0)
    assert lease.tick(5.0)


def test_a_stopped_process_does_not_expire_on_waking() -> None:
    lease = Lease(lease_s=60, now_s=0)
    assert not lease.tick(3600.0)
    assert lease.waited_s == MAX_TICK_S
