"""What README and docs say is done here, block by block, in a folder that holds the demo's files.

- ```python is executed; each block stands alone. After `<!-- memory.ekb is a small network with a state -->` that file
  is there, after `<!-- clip.mp4 is a clip -->` that one, after `<!-- camera.ekb is an encrypted bundle, camera.secret
  its key -->` both of them.
- ```sh: `edgekit` and `openssl` commands are run and must exit 0; `make` must name a target, `pip install` an extra.
  After `<!-- not run: why -->` an `edgekit` command is only parsed, as a block of Python is; after
  `<!-- run by FILE -->` that test runs it.
- ```console: each `$ ` command is run, and what it prints must be what is shown; `...` stands for anything.
  After `<!-- in the finder's folder -->` that is where docs/examples/finder.py has left its network.
- ```toml must be accepted by the reader of contract files, or of profiles where it has a [core], of alerts'
  rules where it has webhooks, or of recipes where it has a rate.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import clips
import memory
import pytest
import tiny
import worded

from edgekit_runtime.bundle.secrets import load_secret

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {"python", "sh", "console", "toml", "json", "text"}
RUN = {"edgekit", "openssl", "echo", "head", "mkdir"}
STATEFUL = "memory.ekb is a small network with a state"
ENCRYPTED = "camera.ekb is an encrypted bundle, camera.secret its key"
CLIP = "clip.mp4 is a clip"
NOT_RUN = {
    "git", "cd", "cp", "sudo", "python", "python3", "uv", ".venv/bin/python", "tritonserver", "mosquitto", "curl",
    "mender-artifact", "podman", "source",
}  # fmt: skip
"""Installing, and what runs elsewhere."""


@dataclass(frozen=True)
class Block:
    """remark: the HTML comment on the line above the fence, if any."""

    page: Path
    line: int
    language: str
    text: str
    remark: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"

    @property
    def not_run(self) -> bool:
        return self.remark.startswith("not run")


def blocks_of(page: Path) -> Iterator[Block]:
    source = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(source):
        before = source[: found.start()]
        remark = re.search(r"<!-- (.*?) -->\n\Z", before)
        yield Block(page, before.count("\n") + 1, found[1], found[2], remark[1] if remark else "")


BLOCKS = [block for page in PAGES for block in blocks_of(page) if not block.remark.startswith("run by ")]


def written_in(language: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == language], ids=str)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A PATH on which `edgekit` is this checkout's, run by this interpreter."""
    if shutil.which("bash") is None:
        pytest.skip("the blocks are written for a POSIX shell")
    folder = tmp_path_factory.mktemp("bin")
    shim = folder / "edgekit"
    shim.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c 'from edgekit.cli import main; main()' \"$@\"\n")
    shim.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100"}


@pytest.fixture
def folder(demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: empty but for demo/."""
    assert demo.ran.code == 0, demo.ran.err
    (tmp_path / "demo").symlink_to(demo.folder, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def finders_folder(finder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the page on repair works in."""
    return Path(shutil.copytree(finder, tmp_path_factory.mktemp("finder") / "finder"))


def shell(command: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        env={**environment, "XDG_CONFIG_HOME": str(Path.cwd() / ".config")},  # keys, and whom to trust
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


def commands_in(text: str) -> list[str]:
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def test_every_fence_names_a_language_that_is_checked_here():
    assert {block.language for block in BLOCKS} <= LANGUAGES


@pytest.mark.convert
@written_in("python")
def test_python_block_runs_by_itself(block: Block, request: pytest.FixtureRequest):
    if block.not_run:
        compile(block.text, str(block), "exec")
        return
    folder: Path = request.getfixturevalue("folder")
    if block.remark == STATEFUL:
        memory.bundle(folder, "onnx").rename(folder / "memory.ekb")
    if block.remark == ENCRYPTED:
        (folder / "camera.secret").write_text(f"{bytes(range(100, 132)).hex()}\n")
        (folder / "camera.secret").chmod(0o600)
        secret = load_secret(str(folder / "camera.secret"))
        tiny.bundle(folder, "onnx-f32", secret=secret).rename(folder / "camera.ekb")
    if block.remark == CLIP:
        clips.write(folder / "clip.mp4", [clips.plain(48, 64, shade, shade, shade) for shade in range(5)])
    code = compile("\n" * block.line + block.text, str(block.page), "exec")
    exec(code, {"__name__": "__main__"})  # noqa: S102 - our own pages


@pytest.mark.convert
@written_in("sh")
def test_commands_of_a_block_do_what_the_page_says(block: Block, request: pytest.FixtureRequest):
    commands = [(command, shlex.split(command, comments=True)) for command in commands_in(block.text)]
    if any(words[0] in RUN for _, words in commands) and not block.not_run:
        request.getfixturevalue("folder")
    for command, words in commands:
        if words[0] == "make":
            check_make(words[1:])
        elif "pip" in Path(words[0]).name or words[1:3] == ["-m", "pip"]:
            check_pip(command)
        elif words[0] not in RUN:
            assert words[0] in NOT_RUN, f"{command!r} is neither run nor known"
        elif block.not_run:
            check_parses(words)
        else:
            done = shell(command, request.getfixturevalue("environment"))
            assert done.returncode == 0, f"{command}\n{done.stdout}"


def check_make(targets: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in targets:
        assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), f"there is no target '{target}'"


def check_pip(command: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"(?:\.|edgekit-deploy|\.whl)\[([a-z,-]+)\]", command):
        assert set(extras.split(",")) <= set(project["optional-dependencies"]), command
    for wheel in re.findall(r"\S*/(edgekit_deploy-\S+?\.whl)", command):
        assert wheel == f"edgekit_deploy-{project['version']}-py3-none-any.whl"


def check_parses(words: list[str]) -> None:
    """As click would at the start: every option exists and every value is of its kind."""
    from edgekit.cli.main import cli

    if words[0] != "edgekit":
        return
    command = cli.get_command(cli.make_context("edgekit", list(words[1:]), resilient_parsing=True), words[1])
    assert command is not None, words[1]
    command.make_context(words[1], list(words[2:]))


@pytest.mark.convert
@written_in("console")
def test_console_block_shows_what_is_printed(
    block: Block, request: pytest.FixtureRequest, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    if block.remark == "in the finder's folder":
        monkeypatch.chdir(request.getfixturevalue("finders_folder"))
    else:
        request.getfixturevalue("folder")
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, expected = part.split("\n", 1)
        printed = shell(command, environment).stdout
        if not doctest.OutputChecker().check_output(
            expected.rstrip() + "\n", printed.rstrip() + "\n", doctest.ELLIPSIS
        ):
            pytest.fail(f"$ {command}\n--- the page says\n{expected}\n--- it prints\n{printed}")


@dataclass(frozen=True)
class Model:
    """As much of a source model as a contract file is checked against."""

    inputs: tuple[object, ...]
    outputs: tuple[object, ...]
    path: Path = Path("model.keras")
    state: str = "none"
    state_pairs: tuple[tuple[str, str], ...] = ()
    stated: str = ""


@written_in("toml")
def test_toml_block_is_accepted_by_its_reader(block: Block, tmp_path: Path):
    from edgekit.compressing.compress_request import read_recipe
    from edgekit.fleet.alerts.rules_file import read_rules
    from edgekit_converters.data.describe_contract import describe
    from edgekit_profiles import parse
    from edgekit_profiles.catalogue import built_in

    document = tomllib.loads(block.text)
    if "accelerators" in document and "core" not in document:  # a part of a profile
        board = "raspberry-pi-4-trixie"
        parse(built_in().text(board) + block.text, "raspberry-pi-4.toml", "raspberry-pi-4")
        return
    if "core" in document:
        parse(block.text, "page.toml", document["name"])
        return
    if "webhooks" in document:
        (tmp_path / "alerts.toml").write_text(block.text, encoding="utf-8")
        read_rules(tmp_path / "alerts.toml")
        return
    if "rate" in document:
        (tmp_path / "net.toml").write_text(block.text, encoding="utf-8")
        assert read_recipe(tmp_path / "net.toml").keys() == document.keys()
        return
    file = tmp_path / "model.contract.toml"
    file.write_text(block.text, encoding="utf-8")
    if isinstance(document.get("labels"), str):
        (tmp_path / document["labels"]).write_text("".join(f"class {i}\n" for i in range(1000)))
    if "text" in document:
        pytest.importorskip("tokenizers")
        tokenizer = tmp_path / document["text"]["tokenizer"]
        tokenizer.parent.mkdir(parents=True)
        tokenizer.write_text(worded.tokenizer_json())
    describe(model_for(document), file)  # type: ignore[arg-type]


def model_for(document: dict) -> Model:
    from edgekit_runtime.contract.spec import TensorSpec

    tables = {"image": document["input"]} if "input" in document else document.get("inputs", {})
    inputs = []
    for name, table in tables.items():
        shape = (-1, 224, 224, 1 if table.get("color") == "gray" else 3) if table["kind"] == "image" else (-1, 16)
        inputs.append(TensorSpec(name, name, "float32", shape, "NHWC" if table["kind"] == "image" else None))
    if "text" in document:
        names = ("input_ids", "attention_mask", "token_type_ids")
        inputs = [TensorSpec(name, name, "int64", (-1, 64)) for name in names]
    labels = document.get("labels")
    outputs = {"probs": (-1, len(labels) if isinstance(labels, list) else 1000)}
    if "detection" in document:
        named = document["detection"]
        outputs = {
            key: {"boxes": (-1, 10, 4), "count": (-1, 1)}.get(key, (-1, 10))
            for key in ("boxes", "scores", "classes", "count")
            if key in named
        } or {"output0": (-1, 84, 8400)}
    kept = document.get("state", {}).get("carried", {})
    inputs += [TensorSpec(name, name, "float32", (1, 2, 1, 64)) for name in kept]
    states = [TensorSpec(name, name, "float32", (1, 2, 1, 64)) for name in kept.values()]
    given = [TensorSpec("audio", "audio", "float32", (1, 576))] if kept else []
    told = [TensorSpec(name, name, "float32", shape) for name, shape in outputs.items()]
    return Model((*given, *inputs), (*told, *states))
