"""The tree of errors: each crosses a process border whole, and failures are data."""

from __future__ import annotations

import pickle

import pytest

from workers import errors
from workers.errors import FieldProblem, JobError, Reason, SpecError, StaleTermError, failure_of


def tree(kind: type[JobError]) -> list[type[JobError]]:
    return [kind, *(found for below in kind.__subclasses__() for found in tree(below))]


KINDS = [kind for kind in tree(JobError) if kind.__module__ == errors.__name__]


def example(kind: type[JobError]) -> JobError:
    if issubclass(kind, SpecError):
        return kind([FieldProblem("/a", "is wrong; give b"), FieldProblem("", "is odd")], code="NOT_AVAILABLE")
    if issubclass(kind, StaleTermError):
        return kind(seen=2, current=3)
    return kind("x=3 is wrong; give 4")


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_survives_pickling(kind: type[JobError]) -> None:
    error = example(kind)
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert (str(back), back.args, back.reason, vars(back)) == (str(error), error.args, error.reason, vars(error))


def test_every_reason_of_an_error_is_one_of_the_contract() -> None:
    assert {kind.reason for kind in KINDS} <= set(Reason)
    assert len(KINDS) >= 12


def test_a_refused_spec_names_every_field() -> None:
    assert str(example(SpecError)) == "/a: is wrong; give b; /: is odd"


def test_a_failure_tells_type_message_and_traceback() -> None:
    try:
        raise KeyError("lr")
    except KeyError as error:
        failure = failure_of(error, worker_id="1.2", rank=1, round=7)
    assert (failure.reason, failure.type, failure.message) == (Reason.USER_ERROR, "KeyError", "'lr'")
    assert (failure.worker_id, failure.rank, failure.round) == ("1.2", 1, 7)
    assert 'raise KeyError("lr")' in failure.traceback
    assert pickle.loads(pickle.dumps(failure)) == failure


def test_a_failure_of_the_tree_keeps_its_reason_and_its_cause() -> None:
    try:
        try:
            raise ValueError("inner")
        except ValueError as error:
            raise errors.DependencyError("outer") from error
    except errors.DependencyError as error:
        failure = failure_of(error)
    assert failure.reason is Reason.DEPENDENCY_FAILED
    assert "ValueError: inner" in failure.traceback


def test_an_error_without_a_message_is_told_by_its_type() -> None:
    assert failure_of(AssertionError()).message == "AssertionError"


class Marked(str):
    """As template engines have it: a text that stays what it is."""

    def __str__(self) -> str:
        return self


def test_a_message_in_a_class_of_the_users_own_travels_as_plain_text() -> None:
    failure = failure_of(ValueError(Marked("<b>wrong</b>")))
    assert (type(failure.message), failure.message) == (str, "<b>wrong</b>")


def test_a_huge_traceback_is_cut_in_the_middle() -> None:
    failure = failure_of(ValueError("begin " + "x" * 500_000 + " end"))
    assert len(failure.traceback) < errors.MAX_TRACEBACK_CHARS + 100
    assert "characters cut" in failure.traceback
    assert failure.traceback.rstrip().endswith("end")
