"""Every command where no extra is installed: done, a refusal of its own, or the line that names the extra."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import bare
import click
import commands
import numpy as np
import pytest
import tiny
from once import once
from packaging.utils import canonicalize_name

import edgekit
import edgekit_converters
import edgekit_profiles
import edgekit_runtime
from edgekit.cli.main import COMMANDS, cli
from edgekit.packaging.output_errors import EXTRAS_OF, missing_extra

PACKAGES = (edgekit, edgekit_converters, edgekit_profiles, edgekit_runtime)
BASE = {"click", "cryptography", "numpy", "tomli", "xxhash"}

# Of each command, with files that are there: the extra that its error names, or "" where the base install does it.
ASKED = {
    "try tiny_f32.onnx": "convert",
    "build tiny_f32.onnx --profile raspberry-pi-4 --calibration photos": "convert",
    "build net.keras --profile raspberry-pi-4 --calibration photos": "convert",
    "build net.pt2 --profile raspberry-pi-4 --calibration photos": "torch",
    "compress tiny_f32.onnx --train photos --evaluation photos": "convert",
    "contract tiny_f32.onnx": "convert",
    "contract tiny_f32.tflite": "convert",
    "inspect tiny.ekb --sbom": "",
    "check tiny.ekb --profile raspberry-pi-4 --allow-unsigned": "convert",
    "check tiny_f32.onnx --profile raspberry-pi-4": "convert",
    "estimate tiny_f32.onnx --profile raspberry-pi-4": "convert",
    "estimate tiny_int8.tflite --profile raspberry-pi-4 --measure-here": "litert",
    "estimate tiny.ekb --profile raspberry-pi-4 --allow-unsigned": "litert",
    "export tiny.ekb --allow-unsigned -o plain": "",
    "export tiny.ekb --for web --allow-unsigned -o page": "image",
    "profiles list": "",
    "profiles show raspberry-pi-4": "",
    "profiles validate raspberry-pi-4.toml": "",
    "profiles diff raspberry-pi-4 raspberry-pi-5": "",
    "profiles measure -o here.json": "litert",
    "profiles detect": "",
    "demo": "demo",
    "demo --fleet": "fleet",
    "demo --fallback": "fleet",
    "run tiny.ekb red.npy": "litert",
    "bench tiny.ekb": "litert",
    "doctor missing-extra": "",
    "deploy tiny.ekb -o package --profile raspberry-pi-4 --allow-unsigned": "ship",
    "install tiny.ekb --root root --allow-unsigned": "litert",
    "status root": "",
    "rollback --root root": "no-generation",
    "agent --root root --broker mqtt://127.0.0.1:1 --device porch-1": "telemetry",
    "keys new release --folder keys": "",
    "keys list --folder keys": "",
    "keys trust release --folder keys --root-json root.json": "",
    "keys trust --renew --folder keys --root-json root.json": "",
    "keys trust other --replace nobody --folder keys --root-json root.json": "keys",
    "keys revoke nobody --folder keys --root-json root.json --why lost": "keys",
    "keys sign tiny.ekb --openssf --sign release --folder keys": "openssf",
    "keys new porch --secret --folder keys": "",
    "keys sign tiny.ekb --sign release --folder keys -o signed.ekb": "",
    "keys update root.json --to trust": "",
    "verify tiny.ekb --allow-unsigned": "",
    "host serve tiny.ekb --allow-unsigned --listen 127.0.0.1:0": "litert",
    "host export tiny.ekb --for triton -o triton --allow-unsigned": "export",
    "fleet serve --embedded-broker --broker-port 0 --listen 127.0.0.1:0": "fleet",
    "fleet serve --broker mqtt://127.0.0.1:1 --listen 127.0.0.1:0 --store postgresql://x@127.0.0.1:1/x": "fleet",
    "fleet broker-config -o broker --board porch-1 --unencrypted": "",
    "fleet ingest --broker mqtt://127.0.0.1:1 --share one --store postgresql://x@127.0.0.1:1/x": "fleet",
    "fleet simulate --broker mqtt://127.0.0.1:1 --devices 1 --minutes 1": "telemetry",
    "fleet forget porch-1": "fleet",
    "fleet rollout tiny.ekb --server http://127.0.0.1:1": "fleet",
    **{f"fleet {command}": "fleet" for command in (
        "rollouts", "pause 1", "resume 1", "abort 1", "undo 1", "alerts", "acknowledge 1", "silence porch-1", "check",
    )},
    "fleet samples new-key builder.key": "",
    "fleet samples pull --key builder.key -o field": "fleet",
    "fleet samples delete": "fleet",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where all of them run."""
    here = tmp_path_factory.mktemp("asked")
    shutil.move(tiny.bundle(here), here / "tiny.ekb")
    for model in ("tiny_f32.onnx", "tiny_f32.tflite", "tiny_int8.tflite"):
        shutil.copy(tiny.MODELS / model, here)
    (here / "photos").mkdir()
    for name in ("net.keras", "net.pt2"):
        (here / name).write_bytes(b"PK")
    np.save(here / "red.npy", tiny.RED)
    shutil.copy(next(Path(edgekit_profiles.__file__).parent.rglob("raspberry-pi-4.toml")), here)
    return here


def asked(python: Path, line: str, folder: Path) -> tuple[int, str]:
    """Its exit code, and what it printed."""
    home = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    code, out, err = commands.run(shlex.split(line), folder, home, 60, str(python))
    return code, out + err


@pytest.fixture(scope="module")
def base(request) -> Path:
    return once(request, "base-install", lambda folder: bare.base_install(folder / "venv")) / "venv" / "bin" / "python"


@pytest.mark.slow  # some 60 processes
def test_each_command_in_the_base_install_does_its_work_or_names_what_it_needs(base, folder):
    wrong = []
    for line, needed in ASKED.items():
        code, said = asked(base, line, folder)
        if needed in ("", "no-generation", "keys", "export"):
            right = code == 0 if not needed else code == 1 and f"[{needed}]" in said
        else:
            right = code == 1 and re.search(rf"needs the '{needed}' extra.*\[missing-extra\]$", said, re.MULTILINE)
        if not right or "Traceback" in said:
            wrong.append((line, code, said[-400:]))
    assert not wrong, "\n".join(map(str, wrong))


def test_every_command_is_asked():
    def leaves(command, path):
        if isinstance(command, click.Group):
            return [leaf for name, below in command.commands.items() for leaf in leaves(below, (*path, name))]
        return [" ".join(path)]

    every = [leaf for name in COMMANDS for leaf in leaves(cli.get_command(None, name), (name,))]
    assert [leaf for leaf in every if not any(f"{line} ".startswith(f"{leaf} ") for line in ASKED)] == []


@pytest.mark.parametrize("line", ["demo --fleet", *(line for line in ASKED if line.startswith("fleet serve"))])
def test_after_the_demo_the_fleet_page_names_its_extra(request, folder, line):
    demo = once(request, "demo-install", lambda folder: bare.base_install(folder / "venv", "demo"))
    code, said = asked(demo / "venv" / "bin" / "python", line, folder)
    assert code == 1
    assert re.search(r"needs the 'fleet' extra, .*\[fleet\]'.* \[missing-extra\]$", said), said


def test_whatever_is_imported_late_has_an_extra():
    imported = set()
    for package in PACKAGES:
        for file in Path(package.__file__).parent.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    imported.add(node.module.partition(".")[0])
    ours = {package.__name__ for package in PACKAGES}
    found_or_named = {"tflite_runtime"}  # in a table
    assert imported - sys.stdlib_module_names - ours - BASE == set(EXTRAS_OF) - found_or_named


@pytest.mark.parametrize("module", EXTRAS_OF)
def test_the_extra_brings_the_module(module):
    brought = {canonicalize_name(name) for name in packages_distributions().get(module, ())}
    if not brought:
        pytest.skip(f"{module} is not installed here")
    for extra in EXTRAS_OF[module]:
        assert bare.needed("edgekit-deploy", (extra,)) & brought, extra


def test_a_module_that_is_there_and_damaged_is_no_missing_extra():
    assert missing_extra(ModuleNotFoundError("No module named 'numpy.gone'", name="numpy.gone"), "run") is None
    assert missing_extra(ModuleNotFoundError("No module named 'PIL.gone'", name="PIL.gone"), "run") is None
    assert missing_extra(ImportError("no"), "run") is None
