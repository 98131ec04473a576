"""Files of runs read back. A file that cannot be read, or holds something else, raises a clear error."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from torchpbp.errors import DataError

YAML_ERRORS = (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What PyYAML raises: tags such as ``!!bool x`` or ``!!timestamp x`` end in errors of Python itself."""


def folder_of(path: str | os.PathLike[str], what: str) -> Path:
    """The path of a folder that exists.

    Args:
        path: given by the user.
        what: is expected there, for the message.
    """
    if not str(path) or not os.path.isdir(path):  # which is false where the path cannot be one
        raise DataError(f"Expected {what}, got {str(path)!r:.200}, which is not a folder.")
    return Path(path)


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file, or in a YAML file; an empty YAML file is an empty mapping.

    Raises:
        DataError: a file that cannot be read, or holds no mapping.
    """
    content = _parsed(path)
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a mapping of names to values, got a {type(content).__name__}. {REMEDY}")
    return {str(key): value for key, value in content.items()}


def read_texts(path: Path) -> list[str]:
    """The list of texts in a YAML file; an empty file is an empty list.

    Raises:
        DataError: a file that cannot be read, or holds something else.
    """
    content = _parsed(path) or []
    if not isinstance(content, list) or not all(isinstance(item, str) for item in content):
        raise DataError(f"{path}: expected a YAML list of overrides such as seed=1, got {content!r:.200}. {REMEDY}")
    return content


REMEDY = "Delete the file, or run this job again."


def _parsed(path: Path) -> Any:
    kind, parse = ("JSON", json.loads) if path.suffix == ".json" else ("YAML", _yaml)
    return read_parsed(path, kind, lambda: parse(path.read_text(encoding="utf-8")), YAML_ERRORS)


def read_parsed(path: Path, kind: str, parse: Callable[[], Any], errors: tuple[type[Exception], ...]) -> Any:
    """What a parser makes of a file.

    Args:
        path: of the file.
        kind: of content expected.
        parse: reads the file.
        errors: that it raises for other content.
    """
    try:
        return parse()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}). Check its permissions.") from error
    except errors as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path}: not valid {kind} ({reason:.200}). {REMEDY}") from error


def _yaml(text: str) -> Any:
    content = yaml.safe_load(text)
    return {} if content is None else content
