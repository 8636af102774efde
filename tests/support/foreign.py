"""Engines of other languages, for the programs that `edgekit export` writes: npm's packages, compilers, headers.

Each is installed where the test needs it; a laptop without one skips.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from once import once
from parts import missing

from edgekit.boards.emulated_board import EmulatorMissingError, Image, MirrorUpdatingError, UserlandError
from edgekit.boards.userland import Userland, userland
from edgekit.shipping.programs import mediapipe as of_mediapipe
from edgekit.shipping.programs.javascript import PACKAGES

TYPESCRIPT = {"typescript": "5.9.3"}
REACT_NATIVE = {
    "react-native-fast-tflite": "3.0.1",
    "react-native-nitro-modules": "0.37.1",
    "onnxruntime-react-native": "1.24.3",
}
PREDICT_PY = """
import os, pathlib, runpy, sys
from edgekit_converters.sources.sandbox import Sandbox, enter_sandbox
enter_sandbox(Sandbox([pathlib.Path("/")], [pathlib.Path.cwd()]))
os.environ["MPLCONFIGDIR"] = "."
sys.modules["tensorflow"] = None
runpy.run_path("predict.py", run_name="__main__")
"""
"""Runs predict.py of MediaPipe, which reports its use where there is a network, and imports TensorFlow."""
TRIPLES = {"aarch64": "aarch64-linux-gnu", "armv7l": "arm-linux-gnueabihf"}
HEADERS = "usr/include/onnxruntime"


def install(folder: Path, packages: dict[str, str] = PACKAGES | of_mediapipe.PACKAGES | TYPESCRIPT) -> None:
    """Let npm install the packages, without their peers, into a folder. Raises RuntimeError with its first line."""
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": packages}))
    command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--legacy-peer-deps"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(next(iter(done.stderr.splitlines()), "npm failed"))


def install_mediapipe(folder: Path) -> None:
    """Let uv install MediaPipe into a folder. Raises RuntimeError with its first line."""
    command = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", sys.executable, "--target", folder]
    done = subprocess.run([*command, "mediapipe==1.2.3"], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(next(iter(done.stderr.splitlines()), "uv failed"))


def node_modules(request, name: str = "npm", fill: Callable[[Path], object] = install) -> Path:
    """A folder with `node_modules`, once for all tests."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        missing("Node with npm", "apt-get install nodejs npm")
    try:
        return once(request, name, fill) / "node_modules"
    except RuntimeError as error:
        missing(f"what npm installs ({error})", "a network with npm's registry")
        raise


def node(folder: Path, *arguments: str, modules: Path) -> subprocess.CompletedProcess[str]:
    """Run Node in an exported folder."""
    if not (folder / "node_modules").exists():
        (folder / "node_modules").symlink_to(modules)
    return subprocess.run(["node", *arguments], cwd=folder, capture_output=True, text=True, timeout=300)


def land(request, machine: str) -> Userland:
    """A Debian with ONNX Runtime and its headers, once for all tests."""
    try:
        return userland(
            Image("trixie", machine), ["libonnxruntime-dev"], cache_dir=once(request, "lands", lambda _: None)
        )
    except (EmulatorMissingError, UserlandError, MirrorUpdatingError) as error:
        missing(f"Debian's libonnxruntime-dev ({error.what})", "a network with Debian's mirror")
        raise


def compiler(name: str) -> str:
    if shutil.which(name) is None:
        package = f"gcc-{name.removesuffix('-gcc')}" if name.endswith("-gcc") else name
        missing(name, f"apt-get install {package}")
    return name


def onnxruntime(request, machine: str = "x86_64") -> Path:
    """A folder with include/ and lib/: Debian's headers, npm's library (of x86-64 and aarch64)."""
    modules, headers = node_modules(request), land(request, "aarch64").root / HEADERS
    return once(request, f"onnxruntime-{machine}", lambda folder: join(folder, headers, modules, machine))


def join(folder: Path, headers: Path, modules: Path, machine: str) -> None:
    """Fill a folder with headers and npm's library, as the Makefile takes it."""
    (folder / "include").symlink_to(headers)
    (folder / "lib").mkdir()
    architecture = {"x86_64": "x64", "aarch64": "arm64"}[machine]
    library = modules / f"onnxruntime-node/bin/napi-v6/linux/{architecture}/libonnxruntime.so.1"
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (folder / "lib" / name).symlink_to(library)


def cross_compile(folder: Path, machine: str, include: Path, libraries: Path) -> None:
    """Compile an exported program for an emulated board."""
    command = [
        compiler(f"{TRIPLES[machine]}-gcc"),
        "-std=c99",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-ffp-contract=off",
    ]
    command += [f"-I{include}", "main.c", "predict.c", "-o", "predict", f"-L{libraries}"]
    subprocess.run([*command, "-Wl,--allow-shlib-undefined", "-lonnxruntime", "-lm"], cwd=folder, check=True)


def compile_program(folder: Path, ort: Path, cc: str = "gcc", flags: str = "-O1") -> None:
    """Compile an exported program as its Makefile does."""
    done = subprocess.run(
        ["make", "-s", "-B", "predict", f"CC={compiler(cc)}", f"CFLAGS={flags}", f"ORT={ort}"],
        cwd=folder, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def mediapipe(request) -> dict[str, str]:
    """An environment in which Python finds MediaPipe, which brings a cv2 of its own and so lies apart."""

    try:
        return os.environ | {"PYTHONPATH": str(once(request, "mediapipe", install_mediapipe))}
    except RuntimeError as error:
        missing(f"MediaPipe ({error})", "a network with PyPI")
        raise


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server of this folder's files."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
