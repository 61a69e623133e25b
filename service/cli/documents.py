"""Reads YAML as people mean it: numbers like 1e-3, no `on` that turns into true, no key twice."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Hashable, Mapping
from typing import Any

import yaml

from service.strict_json import MAX_DIGITS, parse_json


class DocumentError(Exception):
    """A file or a ``--set`` cannot be read; the message names the place."""


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core types; PyYAML's own are those of 1.1, where 1e-3 is text and `no` is false."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - as the parent has it

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key in seen:
                raise _refused(f"the key {key!r} stands twice; keep one of them", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):  # as PyYAML takes `!!bool` and its like at their word
            raise _refused(f"{node.value!r:.80} is no {node.tag.rpartition(':')[2]}", node) from None


for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:int", r"^[-+]?[0-9][0-9_]*$", "-+0123456789"),
    ("tag:yaml.org,2002:float", r"^[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
    ("tag:yaml.org,2002:merge", r"^(?:<<)$", "<"),
):
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), list(_first))


def _whole_number(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node).replace("_", "")
    num_digits = len(text.lstrip("+-"))
    if num_digits > MAX_DIGITS:
        told = f"a whole number has {num_digits} digits; at most {MAX_DIGITS} are read"
        raise _refused(f"{told}: write a shorter one, or quotes around a text", node)
    return int(text)  # 007 is seven, not octal


def _refused(told: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, told, node.start_mark)


_Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)


def parse(text: str, name: str) -> Any:
    """The value of a YAML or JSON text; ``name`` is what a person calls it. Raises DocumentError."""
    try:
        value = _read(text)
        json.dumps(value, allow_nan=False)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        raise DocumentError(f"{name}{place}: {getattr(error, 'problem', None) or error}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise DocumentError(f"{name} cannot be sent as JSON: {error}") from None
    return value


def _read(text: str) -> Any:
    # PyYAML does not join the halves of a character that JSON wrote as two escapes.
    if text.lstrip()[:1] in ("{", "[", '"'):
        with contextlib.suppress(json.JSONDecodeError):
            return parse_json(text)
    return yaml.load(text, Loader=_Loader)  # _Loader is a SafeLoader: it makes no objects


def apply_settings(document: Mapping[str, Any], settings: list[str]) -> dict[str, Any]:
    """The document with each ``a.b=c`` put in; the value is read as YAML. Raises DocumentError."""
    result = json.loads(json.dumps(document))
    for setting in settings:
        path, equals, text = setting.partition("=")
        keys = path.split(".")
        if not equals or not all(keys):
            raise DocumentError(f"--set {setting}: write it as path=value, for example --set optimizer.lr=3e-4")
        place = result
        for depth, key in enumerate(keys[:-1], start=1):
            if place.get(key) is None:
                place[key] = {}
            place = place[key]
            if not isinstance(place, dict):
                raise DocumentError(f"--set {setting}: {'.'.join(keys[:depth])} is {place!r}, which has no parts")
        place[keys[-1]] = parse(text, f"--set {setting:.80}")
    return dict(result)
