"""Programs and functions run in a child of the test's process, which has imported everything: seconds less than a new interpreter."""

from __future__ import annotations

import atexit
import logging
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def forked(action: Callable[[], Any], log: Path) -> int:
    """Start a process that calls a function and ends; returns its number. Its output goes to a file."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout = sys.stderr = os.fdopen(handle, "w", buffering=1)
        action()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """Wait for a process; its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def wait_for(found: Callable[[], Any], child: int, seconds: float = 120) -> bool:
    """Wait until a condition holds; false if the process ended first."""
    last = time.monotonic() + seconds
    while not found():
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
        if time.monotonic() > last:
            raise TimeoutError(f"nothing was found after {seconds} seconds")
        time.sleep(0.005)
    return True


def run_script(script: Path, *arguments: str, folder: Path, seconds: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a script as ``python script arguments`` in a folder; what it prints is kept.

    Args:
        script: a file.
        arguments: of the command line.
        folder: to run in.
        seconds: after which it is stopped.
    """
    with tempfile.TemporaryDirectory() as kept:
        files = [Path(kept) / name for name in ("stdout", "stderr")]
        child = os.fork()
        if not child:
            _become(script, arguments, folder, files)
        last = time.monotonic() + seconds
        while not (state := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > last:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise TimeoutError(f"{script.name} {' '.join(arguments)}: more than {seconds} seconds.")
            time.sleep(0.02)
        code = os.waitstatus_to_exitcode(state[1])
        return subprocess.CompletedProcess([str(script), *arguments], code, *(file.read_text() for file in files))


def _become(script: Path, arguments: tuple[str, ...], folder: Path, files: list[Path]) -> None:
    """Go on as the script, and end with it."""
    code = 1
    try:
        atexit._clear()  # the test's own
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, file in enumerate(files, start=1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        for logger in [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]:
            for handler in logger.handlers:
                if type(handler) is logging.StreamHandler:
                    handler.setStream(sys.stderr)
        sys.argv = [str(script), *arguments]
        runpy.run_path(str(script), run_name="__main__")
        code = 0
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
