"""What a stranger installs: the wheel's files, the base install, and what opening a bundle imports."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tiny
from distribution.conftest import ROOT, run
from distribution.wheel_contents import problems

import hatch_build

HEAVY = ("tensorflow", "keras", "onnx", "tf2onnx", "click", "starlette", "rich", "edgekit", "edgekit_converters")


def test_the_wheel_holds_four_packages_their_data_and_nothing_else(wheel):
    assert problems(wheel) == []


def test_the_same_tree_gives_the_same_bytes(wheel, tmp_path):
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", ROOT, "--outdir", tmp_path])
    (again,) = tmp_path.glob("*.whl")
    assert again.read_bytes() == wheel.read_bytes()


def test_a_wheel_names_the_address_that_it_is_published_at(wheel, tmp_path):
    def told(built: Path) -> list[str]:
        with zipfile.ZipFile(built) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            return re.findall("^Project-URL: (.*)$", archive.read(name).decode(), re.MULTILINE)

    build = [sys.executable, "-m", "build", "--no-isolation", ROOT, "--outdir", tmp_path]
    run(build, env=os.environ | {"EDGEKIT_URL": "git@forge.example:maker/kit.git"})
    (named,) = tmp_path.glob("*.whl")  # made from the source distribution
    assert "Homepage, https://forge.example/maker/kit" in told(named)
    assert "Issues, https://forge.example/maker/kit/issues" in told(named)
    assert told(wheel) == []


@pytest.mark.parametrize(
    ("address", "home"),
    [
        ("https://forge.example/maker/kit", "https://forge.example/maker/kit"),
        ("https://user:secret@forge.example/group/sub/kit.git", "https://forge.example/group/sub/kit"),
        ("ssh://git@forge.example/maker/kit.git", "https://forge.example/maker/kit"),
        ("git@forge.example:maker/kit.git", "https://forge.example/maker/kit"),
        ("", None),
    ],
)
def test_the_address_is_that_of_the_repository(address, home):
    assert hatch_build.urls(address).get("Homepage") == home


@pytest.mark.parametrize("address", ["/srv/kit", "forge.example/maker/kit", "file:///srv/kit", "https://forge.example"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ValueError, match="EDGEKIT_URL is"):
        hatch_build.urls(address)


def test_a_wheel_with_a_stray_file_is_noticed(wheel, tmp_path):
    broken = tmp_path / wheel.name
    shutil.copy(wheel, broken)
    with zipfile.ZipFile(broken, "a") as archive:
        archive.writestr("runtime/stray.py", "")
        archive.writestr("edgekit/model.keras", "")
    assert problems(broken) == [
        "unexpected top level: runtime",
        "should not be shipped: edgekit/model.keras",
    ]


@pytest.fixture(scope="session")
def board(wheel, uv, tmp_path_factory) -> Path:
    """An empty environment with the wheel and one engine, as a board has it: its python."""
    folder = tmp_path_factory.mktemp("board") / "venv"
    run([uv, "venv", "--python", "3.11", folder])
    python = folder / "bin" / "python"
    run([uv, "pip", "install", "--python", python, f"{wheel}[litert]"])
    return python


@pytest.mark.network
def test_opening_a_bundle_and_asking_it_imports_nothing_of_the_workstation(board, tmp_path):
    bundle = tiny.bundle(tmp_path)
    script = (
        "import sys, json, numpy as np\n"
        "from edgekit_runtime import open_bundle\n"
        f"with open_bundle({str(bundle)!r}) as model:\n"
        "    best = model.predict(np.full((8, 8, 3), (230, 20, 20), np.uint8)).top(1)[0].label\n"
        "print(json.dumps({'best': best, 'modules': sorted({name.split('.')[0] for name in sys.modules})}))\n"
    )
    found = json.loads(run([board, "-c", script], cwd=tmp_path).stdout)
    assert found["best"] == "red"
    assert not set(HEAVY) & set(found["modules"])
    for late in ("cryptography", "sqlite3", "ssl", "asyncio", "PIL"):
        assert late not in found["modules"], f"{late} is imported before it is needed"


@pytest.mark.network
def test_a_picture_without_pillow_names_the_extra(board, tmp_path):
    bundle = tiny.bundle(tmp_path)
    script = (
        "from edgekit_runtime import open_bundle\nfrom edgekit_runtime.system.errors import MissingExtraError\nwith "
        f"open_bundle({str(bundle)!r}) as model:\n    try: model.predict(b'a png')\n    except MissingExtraError as "
        "error: print(error)\n"
    )
    said = run([board, "-c", script], cwd=tmp_path).stdout.strip()
    assert re.search(r"pip install .*edgekit_deploy-.*\.whl\[image\]'$", said)


@pytest.mark.network
def test_the_commands_of_a_board_work_on_the_base_install(board, tmp_path):
    bundle = tiny.bundle(tmp_path)
    edgekit = board.with_name("edgekit")
    assert "tiny version 1" in run([edgekit, "inspect", bundle], cwd=tmp_path).stdout
    assert "no problems found" in run([edgekit, "doctor"], cwd=tmp_path).stdout
    assert json.loads(run([edgekit, "bench", bundle, "-n", "20", "--json"], cwd=tmp_path).stdout)["n"] == 20
    assert " user land" in run([edgekit, "profiles", "detect"], cwd=tmp_path).stdout


@pytest.mark.network
@pytest.mark.parametrize("command", ["build", "demo"])
def test_what_the_base_install_cannot_do_names_the_extra(board, tmp_path, command):
    model = tiny.MODELS / "tiny_f32.onnx"
    arguments = [str(model), "--profile", "raspberry-pi-4", "--calibration", "."] if command == "build" else []
    done = subprocess.run(
        [board.with_name("edgekit"), command, *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert re.search(r"pip install .*edgekit_deploy-.*\.whl\[(convert|demo)\]' \[missing-extra\]$", done.stderr.strip())
    assert "Traceback" not in done.stderr


@pytest.mark.network
@pytest.mark.parametrize("python", ["3.11", "3.13"])
@pytest.mark.parametrize(("extras", "most"), [("", 6), ("[litert,image]", 16), ("[onnx,image]", 16)])
def test_a_boards_install_resolves_on_aarch64_without_tensorflow(wheel, uv, python, extras, most, tmp_path):
    (tmp_path / "want.in").write_text(f"edgekit-deploy{extras} @ {wheel.as_uri()}\n")
    command = [uv, "pip", "compile", tmp_path / "want.in", "--python-platform", "aarch64-manylinux_2_28",
               "--python-version", python, "--no-header", "--no-annotate"]  # fmt: skip
    lines = [line for line in run(command, cwd=tmp_path).stdout.splitlines() if line.strip()]
    names = {re.split(r"[ =\[@]", line)[0] for line in lines}
    assert not {"tensorflow", "tensorflow-cpu", "keras", "onnx", "torch"} & names
    assert {"click", "numpy", "xxhash", "cryptography"} <= names
    assert len(names) - 1 <= most, sorted(names)
