"""Others' servers and clients of the Open Inference Protocol, each real and in an environment of its own.

The downloads are large (tritonclient 165 MB, nvidia-pytriton 370, mlserver 320, kserve 380 unpacked); uv keeps them for
the next time. What cannot be installed is skipped with its reason on a laptop, and fails in CI.
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from parts import missing
from ports import free_port

STARTS_IN_S = 90.0
SYSTEM_PYTHON = Path("/usr/bin/python3")
TRITON = "nvidia-pytriton==0.7.0"


def environment(folder: Path, python: str | Path, *packages: str) -> Path:
    """A virtual environment with these packages; its python. Skips (in CI: fails) where they cannot be had."""
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        missing("uv", "pip install uv")
    target = folder / "venv"
    for command in (
        [uv, "venv", "--quiet", "--python", python, target],
        [uv, "pip", "install", "--quiet", "--python", target / "bin" / "python", *packages],
    ):
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=500)
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()
            missing(f"{' '.join(packages)} ({said[-1] if said else 'uv failed'})", f"pip install {' '.join(packages)}")
    return target / "bin" / "python"


def is_ready(url: str, model: str) -> bool:
    """By the protocol's own question, as any client asks it; False where nothing listens yet."""
    try:
        with urlopen(f"{url}/v2/models/{model}/ready", timeout=1.0) as answer:
            return answer.status == 200
    except OSError:
        return False


class Started:
    """A server in a process of its own, until the end of the `with`; ready once it says so."""

    def __init__(self, command: list, model: str, log: Path, port: int, **options):
        self.url, self.log, self._model = f"http://127.0.0.1:{port}", log, model
        self._command, self._options = [str(part) for part in command], options

    def __enter__(self):
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, **self._options
            )
        until = time.monotonic() + STARTS_IN_S
        while not is_ready(self.url, self._model):
            if self.process.poll() is not None or time.monotonic() > until:
                self.__exit__()
                pytest.fail(f"the server did not start\n{self.log.read_text()[-3000:]}")
            time.sleep(0.1)  # another program's start can only be polled for
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, 9)
            self.process.wait(20)


class Triton:
    """The real Triton that comes in nvidia-pytriton, on the CPU, with ONNX Runtime beside its Python backend.

    It is linked against Debian 12's own Python 3.11. Skips (in CI: fails) where it cannot be had.
    """

    def __init__(self, folder: Path):
        version = [SYSTEM_PYTHON, "-c", "import sys; print(sys.version_info[:2] == (3, 11))"]
        if not SYSTEM_PYTHON.exists() or subprocess.run(version, capture_output=True).stdout.strip() != b"True":
            missing(
                "Debian 12's Python 3.11, against which Triton's Python backend is linked", "apt-get install python3"
            )
        if ctypes.util.find_library("python3.11") is None:
            missing("libpython3.11, against which Triton's Python backend is linked", "apt-get install libpython3.11")
        self._bin = environment(folder, SYSTEM_PYTHON, TRITON, "onnxruntime").parent
        (self._server,) = (folder / "venv").glob("lib/python3.11/site-packages/pytriton/tritonserver")
        stub = "triton_python_backend_stub"
        shutil.copy(self._server / "python_backend_stubs" / "3.11" / stub, self._server / "backends" / "python" / stub)

    def serve(self, repository: Path, ready: str) -> Started:
        """repository: a model repository. ready: the model to wait for."""
        port = free_port()
        command = [
            self._server / "bin" / "tritonserver", f"--model-repository={repository}",
            f"--backend-directory={self._server / 'backends'}", "--http-address=127.0.0.1", f"--http-port={port}",
            "--allow-grpc=false", "--allow-metrics=false", "--exit-timeout-secs=3",
        ]  # fmt: skip
        # Its Python backend takes whatever python3 is first on PATH.
        own = {"PATH": f"{self._bin}:/usr/bin:/bin", "VIRTUAL_ENV": str(self._bin.parent)}
        return Started(command, ready, repository.parent / f"{repository.name}.log", port, env=own)
