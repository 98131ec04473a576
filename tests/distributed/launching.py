"""Starts a script in two processes that find each other."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path


def run_processes(script: Path, folder: Path, processes: int = 2) -> None:
    """Run a script in several processes, with the folder as its argument; a failure raises with the end of its output."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = []
    for rank in range(processes):
        environment = os.environ | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(processes),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "NODE_RANK": "0",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, str(script), str(folder)]
        running.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    outputs = [process.communicate(timeout=300)[0] for process in running]
    for process, output in zip(running, outputs, strict=True):
        assert process.returncode == 0, output[-3000:]
