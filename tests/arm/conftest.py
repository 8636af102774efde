"""Emulated boards, made once for all of the proof: user lands of Debian's packages, and wheelhouses installed in them.

Everything is made anew in a temporary folder, as CI would; two at a time, for most of it waits or is the emulator's.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import textwrap
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import pytest
from arm.chroot import TOOLS
from once import once
from parts import missing

from edgekit.boards.emulated_board import EmulatorMissingError, MirrorUpdatingError, UserlandError, image_for
from edgekit.boards.emulated_replay import install_emulated
from edgekit.boards.qemu import INSTALL, emulator
from edgekit.boards.userland import Userland, userland
from edgekit.packaging.assemble import BundleArtifact, BundleContent, assemble
from edgekit.packaging.writer import write_bundle
from edgekit.shipping.plan import WheelDownloadError
from edgekit.shipping.wheelhouse import Wheelhouse, collect
from edgekit_converters.recipe.artifact import Artifact, Recipe
from edgekit_profiles import Profile, load
from edgekit_runtime.bundle.manifest import Target
from edgekit_runtime.contract.spec import Contract, InputContract, OutputContract
from edgekit_runtime.engines.registry import load_engine

Part = TypeVar("Part")

# profile, engine, edgekit's extras beside it
BOARDS = {
    "bookworm": ("raspberry-pi-4", "litert", ("image", "onnx", "ncnn")),
    "trixie": ("raspberry-pi-4-trixie", "litert", ("image",)),
    "bookworm, 32 bits": ("raspberry-pi-4-32bit", "tflite-runtime", ("image", "ncnn")),
    "trixie, 32 bits": ("raspberry-pi-4-trixie-32bit", "onnxruntime", ("image",)),
}


@dataclass(frozen=True)
class Bare:
    """A board on which nothing of a package is installed yet."""

    profile: Profile
    house: Wheelhouse
    land: Userland


@dataclass(frozen=True)
class Board(Bare):
    """site: the house's wheels, installed by the board's own pip."""

    site: Path


@pytest.fixture(scope="session")
def cache(request) -> Path:
    """Shared by all processes of a run."""
    return once(request, "emulation", lambda _: None)


def bare(name: str, folder: Path, cache: Path) -> Bare:
    """By its name in BOARDS. folder: for its wheels."""
    profile, engine, extras = BOARDS[name]
    found = load(profile)
    house = collect(found, engine, folder, extras=extras)
    return Bare(found, house, userland(image_for(found), (*house.debian, *TOOLS), cache_dir=cache))


@contextlib.contextmanager
def parts_are_there() -> Iterator[None]:
    """Skip without the emulator or a network, and fail then where CI=true; skip while the mirror is being updated."""
    try:
        yield
    except MirrorUpdatingError as error:
        pytest.skip(str(error))
    except EmulatorMissingError as error:
        missing(f"the ARM emulator ({error.what})", INSTALL)
    except (UserlandError, WheelDownloadError) as error:
        missing(
            f"what an emulated board is made of ({error.what})", "a network with Debian's mirror and a package index"
        )


class Prepared(Generic[Part]):
    """By name: what is being prepared, two at a time. A test is skipped only for what it asks for itself."""

    def __init__(
        self, names: Iterable[str], prepare: Callable[[str, Path], Part], folders: pytest.TempPathFactory
    ) -> None:
        self._pool = ThreadPoolExecutor(2)
        self._parts = {name: self._pool.submit(prepare, name, folders.mktemp("prepared")) for name in names}

    def __getitem__(self, name: str) -> Part:
        with parts_are_there():
            return self._parts[name].result()


@pytest.fixture(scope="session")
def boards(cache, tmp_path_factory) -> Prepared[Board]:
    """By the names of BOARDS."""

    def board(name: str, folder: Path) -> Board:
        found = bare(name, folder, cache)
        return Board(found.profile, found.house, found.land, install_emulated(found.land, found.house, cache_dir=cache))

    with parts_are_there():
        for name in ("raspberry-pi-4", "raspberry-pi-4-32bit"):
            emulator(image_for(load(name)))
    return Prepared(BOARDS, board, tmp_path_factory)


@dataclass(frozen=True)
class Digits:
    """Bundles of the digits network, a trained one. arm: for a Raspberry Pi 4, with int8, float and ONNX artifacts.
    debian: for 32 bits
    and trixie, ONNX alone. old: its int8 artifact, with the golden answers of tflite-runtime's reference kernels."""

    arm: Path
    debian: Path
    old: Path


CONTRACT = Contract(
    task="classification",
    inputs=(InputContract("image", (8, 8, 1), "float32"),),
    outputs=(OutputContract("probs", (10,), "float32"),),
    scores="probabilities",
)
TARGET = Target("raspberry-pi-4", "aarch64", threads=1)


@pytest.fixture(scope="session")
def digits_ncnn(digits_model, tmp_path_factory) -> Path:
    """A bundle of the digits network for ncnn, in 32, 16 and 8 bits."""
    from edgekit_converters.recipe.artifact import recipe as find_recipe
    from edgekit_converters.sources.load import load as load_source
    from edgekit_converters.targets.ncnn_float import find_pnnx
    from edgekit_converters.targets.workspace import Workspace

    if find_pnnx() is None:
        missing("pnnx", "pip install --no-deps pnnx")
    workspace = Workspace(load_source(digits_model.model), _samples(digits_model))
    whole, *others = (workspace.make(find_recipe(name)) for name in ("ncnn-f32", "ncnn-f16", "ncnn-int8"))
    golden = [{"image": item} for item in np.load(digits_model.evaluation)["x"][:4]]
    beside = [BundleArtifact(one) for one in others]
    content = BundleContent("digits", "1", "0" * 64, CONTRACT, TARGET, whole, golden, alternates=beside)
    path = tmp_path_factory.mktemp("digits-ncnn") / "ncnn.ekb"
    write_bundle(path, *assemble(content), [])
    return path


def _samples(digits_model) -> list[list[np.ndarray]]:
    return [[item[None]] for item in np.load(digits_model.calibration)["x"]]


@pytest.fixture(scope="session")
def digits(digits_model, tmp_path_factory) -> Digits:
    from edgekit_converters.recipe.artifact import recipe as find_recipe
    from edgekit_converters.sources.load import load as load_source
    from edgekit_converters.targets.workspace import Workspace

    source = load_source(digits_model.model)
    samples = _samples(digits_model)
    names = ("tflite-int8", "tflite-f32", "onnx-int8-qdq", "onnx-f32")
    made = {name: Workspace(source, samples).make(find_recipe(name)) for name in names}
    golden = [{"image": item} for item in np.load(digits_model.evaluation)["x"][:4]]
    folder = tmp_path_factory.mktemp("digits-arm")
    found = Digits(folder / "arm.ekb", folder / "debian.ekb", folder / "old.ekb")
    for path, (first, *others) in ((found.arm, names), (found.debian, names[2:])):
        alternates = [BundleArtifact(made[name]) for name in others]
        content = BundleContent("digits", "1", "0" * 64, CONTRACT, TARGET, made[first], golden, alternates=alternates)
        write_bundle(path, *assemble(content), [])
    _write_old(found, BundleContent("digits", "1", "0" * 64, CONTRACT, TARGET, made["tflite-int8"], golden))
    return found


def _write_old(digits: Digits, content: BundleContent) -> None:
    """What tflite-runtime 2.14 answers with its reference kernels, run on this machine beside this environment."""
    from edgekit.boards.replay import NoEnvironmentError, environment

    try:
        python = environment("tflite-runtime", "2.14.0")
    except NoEnvironmentError as error:
        missing("tflite-runtime 2.14.0 for this Python", f"a package index and Python 3.11 ({error.what})")
    draft, manifest = assemble(content)
    script = textwrap.dedent("""\
        import sys, numpy as np
        from edgekit_runtime.bundle.reader import read_bundle
        from edgekit_runtime.engines.registry import EngineSetup, load_with
        from edgekit_runtime.loading.replay import Stepper
        bundle = read_bundle(sys.argv[1])
        entry, contract = bundle.artifact("tflite-int8"), bundle.manifest.contract
        setup = EngineSetup(kernels="reference")
        with load_with("tflite-runtime", "tflite", bundle.blob(entry.blob), setup) as engine:
            stepper = Stepper(contract, entry.inputs, entry.outputs, engine)
            answers = [stepper.raw(bundle.golden_items(one))[0][0] for one in bundle.manifest.golden]
        np.save(sys.argv[2], np.stack(answers))
    """)
    raw = digits.old.with_suffix(".npy")
    runtime = Path(__file__).parents[2] / "runtime"
    subprocess.run(
        [python, "-c", script, str(digits.arm), str(raw)], check=True, env={**os.environ, "PYTHONPATH": str(runtime)}
    )
    golden = []
    for one, answer in zip(manifest.golden, np.load(raw), strict=True):
        (before,) = one.answers
        outputs = {name: draft.add(np.ascontiguousarray(answer).tobytes()) for name in before.outputs}
        after = replace(before, engine="tflite-runtime", engine_version="2.14.0", outputs=outputs)
        golden.append(replace(one, answers=(after,)))
    write_bundle(digits.old, draft, replace(manifest, golden=tuple(golden)), [])


def contents(data: bytes, recipe: str, golden) -> BundleContent:
    """One artifact of the digits network as a bundle's contents. golden: canonical items, `image` float32 [8, 8, 1]."""
    with load_engine("tflite", data) as engine:
        inputs, outputs = (replace(engine.inputs[0], name="image"),), (replace(engine.outputs[0], name="probs"),)
    artifact = Artifact(Recipe(recipe, "tflite", "int8"), data, inputs, outputs, 1.0, 1.0, {})
    return BundleContent("digits", "1", "0" * 64, CONTRACT, TARGET, artifact, golden)
