"""Values picked out of a text are those that reading all of it gives."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from service.picking import MAX_SOUGHT, reader

KEYS = st.text(alphabet='abé",:{}[]\\ ', max_size=6)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.none()
VALUES = NUMBERS | st.lists(NUMBERS, max_size=6)


@given(st.dictionaries(KEYS, VALUES, max_size=12), st.frozensets(KEYS, max_size=MAX_SOUGHT + 3))
@example({',"a': 1.0, "a": 2.0}, frozenset({"a"}))
@example({'{"a": [1': [3], '"a': 1.0}, frozenset({"a", '"a'}))
@example({"b": [1.5, 2], "a": 1e300}, frozenset({"a", "b"}))
def test_what_is_picked_is_what_reading_everything_gives(values: dict[str, object], keys: frozenset[str]) -> None:
    text = json.dumps(values, separators=(",", ":"))
    told = {key: value for key, value in values.items() if value is not None}
    picked = reader(keys)(text)
    assert list(picked.items()) == [(key, value) for key, value in told.items() if key in keys]
    assert reader(None)(text) == told


def test_only_what_is_wanted_is_read() -> None:
    assert reader(frozenset({"a"}))('{"b":this is not JSON,"a":1.5,nor is this') == {"a": 1.5}
