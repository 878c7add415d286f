"""YAML that anybody may have written, read within bounds of size and memory."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from fastssl.errors import ConfigError, UserError

LARGEST = 2**16  # bytes of a file; YAML is parsed at seconds per megabyte
MERGE = "tag:yaml.org,2002:merge"  # of the key <<
LARGEST_EXPANDED = 2**18  # characters and values once every alias is written out


class _Loader(yaml.SafeLoader):
    """The safe loader, which also refuses a key that occurs twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        own = [key for key, _ in node.value if key.tag != MERGE]
        keys = [self.construct_object(key, deep=True) for key in own]  # type: ignore[no-untyped-call]
        twice = {str(key) for key, count in Counter(keys).items() if count > 1}
        if twice:
            raise yaml.constructor.ConstructorError(
                None, None, f"{', '.join(sorted(twice))} occurs twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, error: type[UserError] = ConfigError) -> dict[str, Any]:
    """Read a YAML file that must hold `key: value` lines; raise `error` if it does not."""
    try:
        if path.exists() and not path.is_file():  # reading a pipe or a device may never end
            raise error(f"{path} is not a file", "give the path of a YAML file")
        with open(path, "rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise error(
                f"{path} has more than {LARGEST:,} bytes, too many for a configuration",
                "give another file",
            )
        found = parse_yaml(data.decode("utf-8"))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as cause:
        line = " ".join(str(cause).split())[:200]
        raise error(f"{path} is not YAML: {line}", "correct the file") from cause
    except OSError as cause:
        raise error(f"{path} cannot be read: {cause.strerror}", "check the path") from cause
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise error(f"{path} does not hold `key: value` lines", "correct the file")
    return found


def parse_yaml(text: str) -> Any:
    """Return the content of YAML text; raise an error of yaml's or Python's if it has none.

    Aliases share one object in memory, but whoever prints, copies or compares the content writes
    them out: ten lines of ten aliases each stand for 10^10 values.
    """
    loader = _Loader(text)
    node = loader.get_single_node()  # type: ignore[no-untyped-call]
    if node is None:
        return None
    if expanded_size(node, {}) > LARGEST_EXPANDED:
        raise ValueError("its aliases stand for too many values")
    return loader.construct_document(node)  # type: ignore[no-untyped-call]


def expanded_size(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the characters and values of a node once every alias is written out."""
    if id(node) not in known:
        known[id(node)] = LARGEST_EXPANDED  # of a node that contains itself
        if isinstance(node, yaml.MappingNode):
            size = sum(expanded_size(child, known) for child in chain(*node.value))
        elif isinstance(node, yaml.SequenceNode):
            size = sum(expanded_size(child, known) for child in node.value)
        else:
            size = len(node.value)
        known[id(node)] = 1 + size
    return known[id(node)]
