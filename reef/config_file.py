"""Reads a configuration file: YAML whose keys keep their line, so that every error can name it; duplicate keys are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from reef.config import SECTIONS, Setting, unknown_key
from reef.errors import BadConfig, NotFound


class _Loader(yaml.SafeLoader):
    """Safe YAML whose mappings refuse duplicate keys and remember the line of each key."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, tuple[Any, int]]:
    found: dict[str, tuple[Any, int]] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        if not isinstance(key, str):
            raise BadConfig(f"{loader.name}:{line}: key {key!r} must be text")
        if key in found:
            raise BadConfig(
                f"{loader.name}:{line}: {key} is given twice",
                hint=f"the first one is on line {found[key][1]}",
                field=key,
            )
        found[key] = (loader.construct_object(value_node, deep=True), line)
    return found


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_file(path: Path) -> dict[str, Setting]:
    """Settings by flat key, each with its line; raises BadConfig that names file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}", hint="give an existing one with -c") from None
    except OSError as error:
        raise BadConfig(f"{path}: {error.strerror or error}", hint="give an existing file with -c") from error
    except UnicodeDecodeError as error:
        raise BadConfig(f"{path}: not UTF-8 (byte {error.start})") from error
    loader = _Loader(text)
    loader.name = str(path.name)
    try:
        document = loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        raise BadConfig(f"{path.name}{where}: {getattr(error, 'problem', None) or 'not valid YAML'}") from error
    finally:
        loader.dispose()
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise BadConfig(f"{path.name}: the file must be a mapping with sections {', '.join(SECTIONS)}")
    flat: dict[str, Setting] = {}
    for section, (values, line) in document.items():
        if section not in SECTIONS:
            raise unknown_key(section, f"{path.name}:{line}", list(SECTIONS))
        if not isinstance(values, dict):
            raise BadConfig(f"{path.name}:{line}: section {section} must hold keys", field=section)
        for key, (value, key_line) in values.items():
            if isinstance(value, dict):
                raise BadConfig(f"{path.name}:{key_line}: {section}.{key} must be a plain value", field=key)
            flat[f"{section}.{key}"] = Setting(value, f"{path.name}:{key_line}")
    return flat
