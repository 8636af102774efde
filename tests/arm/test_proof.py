"""On ARM, under QEMU and not on hardware: what is shipped installs, loads, and answers as it does here; what must not,
does not.

Three processors of 64 bits (Raspberry Pi 3 and Zero 2 W, 4, 5), both Debian releases, and both 32-bit systems.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import tiny
from arm.conftest import contents
from instructions import KINDS, Instructions, Model, count, counted, plugin_options
from instructions import tasks_for as counting
from planted import dynamic_range

from edgekit.boards.emulated_board import CPUS, NotEmulatedError
from edgekit.boards.emulated_replay import (
    EmulatedInstallError,
    EmulatedReplay,
    ask,
    install_emulated,
    judge_replay,
    replay,
    tasks_for,
)
from edgekit.boards.qemu import EmulatedBoard
from edgekit.packaging.assemble import assemble
from edgekit.packaging.writer import write_bundle
from edgekit_profiles import load
from edgekit_runtime.bundle.reader import read_bundle

CPUS_64 = ("cortex-a53", "cortex-a72", "cortex-a76")
MODELS = Path(__file__).parents[1] / "models"
RECORDED = Path(__file__).with_name("recorded.json")
COUNTED = {name: MODELS / f"{name}.tflite" for name in ("cnn_f32", "cnn_int8")}


# (engine, the end of the recipe's name) -> the largest difference seen between x86-64 and emulated ARM with one engine
# version, in steps: a 41-model sweep, a trained CNN and a MobileNetV2 with random weights. Partly quantized recipes
# were not measured. ncnn's outputs are floats in INT8, too: 21 steps are 0.2 %, of a value rounded otherwise before a
# product. tflite-runtime: between its reference kernels on x86-64 and the board's own.
SEEN_STEPS = {("litert", "int8"): 1.0, ("litert", "f32"): 0.1, ("litert", "f16"): 0.1,
              ("tflite-runtime", "int8"): 1.0, ("tflite-runtime", "f32"): 0.1,
              ("onnxruntime", "f32"): 0.1, ("ncnn", "f32"): 0.1, ("ncnn", "int8"): 30.0}  # fmt: skip


def as_on_x86(found: EmulatedReplay) -> bool | None:
    """Whether all comparable outputs are as close to x86 as seen before; None without any."""
    engine = found.runtime.partition(" ")[0]
    known = [
        one.same_best and one.steps <= SEEN_STEPS[key] + 1e-3
        for one in found.goldens
        if one.same_engine and (key := (engine, one.recipe.partition("-")[2])) in SEEN_STEPS
    ]
    return all(known) if known else None


def judgement(board, cpu, bundle, engine):
    """The verdict of one start of the emulated Python."""
    tasks = tasks_for(read_bundle(bundle), engine)
    with EmulatedBoard(board.land, CPUS[cpu], site=board.site) as machine:
        return judge_replay(board.profile, CPUS[cpu], tasks, ask(machine, tasks))


@dataclass(frozen=True)
class Started:
    """What came of one start of the emulated Python: a verdict for each engine, and counted instructions."""

    verdicts: dict[str, EmulatedReplay]
    counts: dict[str, Instructions]


def started(board, cpu, bundle, cache) -> Started:
    installed_here = {wheel.name for wheel in board.house.wheels}
    engines = ("litert", "onnxruntime") if "onnxruntime" in installed_here else ("litert",)
    tasks = {engine: tasks_for(read_bundle(bundle), engine) for engine in engines}
    models = [Model(name, "tflite", "litert", path) for name, path in COUNTED.items()]
    everything = [*(task for each in tasks.values() for task in each), *counting(models)]
    with EmulatedBoard(board.land, CPUS[cpu], site=board.site) as machine:
        told = ask(machine, everything, options=plugin_options(board.land, cache_dir=cache), kinds=KINDS)
    assert len(told.answers) == len(everything), told.finished
    split, end = len(tasks["litert"]), len(everything) - len(models)
    parts = {"litert": told.answers[:split], "onnxruntime": told.answers[split:end]}
    verdicts = {
        engine: judge_replay(board.profile, CPUS[cpu], tasks[engine], replace(told, answers=parts[engine]))
        for engine in tasks
    }
    return Started(verdicts, counted(models, told.answers[end:], told.finished.err))


@pytest.fixture(scope="session")
def starts(boards, digits, cache) -> dict[str, Started]:
    """By processor; each is started once."""
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda cpu: started(boards["bookworm"], cpu, digits.arm, cache), CPUS_64)
        return dict(zip(CPUS_64, found, strict=True))


@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "profile"), [("bookworm", "raspberry-pi-4"), ("bookworm, 32 bits", "raspberry-pi-4-32bit")]
)
def test_the_installed_wheel_finds_the_profile_of_the_board_that_it_runs_on(boards, name, profile):
    board = boards[name]
    with EmulatedBoard(board.land, CPUS["cortex-a72" if name == "bookworm" else "cortex-a15"], site=board.site, cores=4,
                 model="Raspberry Pi 4 Model B Rev 1.4") as machine:  # fmt: skip
        done = machine.python(["-c", "from edgekit.cli import main; main()", "profiles", "detect", "--json"])
    assert done.code == 0, done
    assert json.loads(done.out)["profile"] == profile


@pytest.mark.network
@pytest.mark.parametrize("engine", ["litert", "onnxruntime"])
@pytest.mark.parametrize("cpu", CPUS_64)
def test_every_64_bit_processor_answers_as_x86(starts, cpu, engine):
    found = starts[cpu].verdicts[engine]
    assert found.ok, (found.failure, found.said)
    assert found.runtime.startswith(engine)
    assert as_on_x86(found) is True
    assert {one.recipe for one in found.goldens} == {
        "litert": {"tflite-int8", "tflite-f32"},
        "onnxruntime": {"onnx-int8-qdq", "onnx-f32"},
    }[engine]
    assert {package.source for package in found.packages} == {"wheel"}
    assert "not on hardware" in found.label
    assert found.cpu in found.label


@pytest.mark.network
@pytest.mark.parametrize(("name", "cpu"), [("bookworm", "cortex-a76"), ("bookworm, 32 bits", "cortex-a15")])
def test_ncnn_answers_on_64_and_on_32_bits_as_on_x86(boards, digits_ncnn, name, cpu):
    found = judgement(boards[name], cpu, digits_ncnn, "ncnn")
    assert found.ok, (found.failure, found.said)
    assert found.opened
    assert as_on_x86(found) is True, [(one.recipe, one.steps) for one in found.goldens]
    assert {one.recipe for one in found.goldens if one.same_best} == {"ncnn-f32", "ncnn-f16", "ncnn-int8"}


@pytest.mark.network
def test_a_bundle_opens_there_as_an_application_opens_it(starts):
    assert all(one.verdicts["litert"].opened for one in starts.values())


@pytest.mark.network
def test_trixie_with_python_3_13_answers_as_x86(boards, digits, cache):
    for engine, found in started(boards["trixie"], "cortex-a72", digits.arm, cache).verdicts.items():
        assert found.ok, (engine, found.failure, found.said)
        assert as_on_x86(found) is True
        assert "trixie aarch64, Python 3.13" in found.label


BASE = {"numpy": "debian", "pillow": "debian", "cryptography": "debian", "xxhash": "debian", "edgekit-deploy": "wheel"}


@pytest.mark.network
def test_32_bit_bookworm_has_tflite_runtime_and_debian_s_numpy(boards, digits, cache):
    board = boards["bookworm, 32 bits"]
    found = replay(digits.old, board.profile, house=board.house, cache_dir=cache)
    assert found.ok, (found.failure, found.said)
    assert (found.runtime, found.cpu) == ("tflite-runtime 2.14.0", "cortex-a15")
    assert found.worst <= 1, "the golden answers are those of the reference kernels, which may round a tie otherwise"
    assert as_on_x86(found) is True
    assert {package.name: package.source for package in found.packages}.items() >= (
        BASE | {"tflite-runtime": "wheel"}
    ).items()


@pytest.mark.network
def test_32_bit_trixie_has_debian_s_onnxruntime(boards, digits, cache):
    board = boards["trixie, 32 bits"]
    found = replay(digits.debian, board.profile, house=board.house, cache_dir=cache)
    assert found.ok, (found.failure, found.said)
    assert found.runtime == "onnxruntime 1.21"
    assert as_on_x86(found) is None, (
        "the golden answers are of a newer ONNX Runtime: likeness is all there is to compare"
    )
    assert min(one.cosine for one in found.goldens) > 0.999
    assert {package.name: package.source for package in found.packages}.items() >= (
        BASE | {"onnxruntime": "debian"}
    ).items()


# What must fail.


@pytest.fixture
def forged(tmp_path):
    """A bundle in which red's golden answer is given for blue, and blue's for red."""
    draft, manifest = assemble(tiny.content())
    red, blue = manifest.golden
    path = tmp_path / "forged.ekb"
    write_bundle(
        path,
        draft,
        replace(manifest, golden=(replace(red, answers=blue.answers), replace(blue, answers=red.answers))),
        [],
    )
    return path


@pytest.mark.network
def test_a_forged_golden_answer_is_caught_there(boards, forged):
    found = judgement(boards["bookworm"], "cortex-a72", forged, "litert")
    assert not found.ok
    assert not found.opened
    assert [one.fits for one in found.goldens] == [False, False]
    assert "golden example 0 of 'probs' differs by" in found.failure


@pytest.mark.network
def test_a_wheel_for_another_machine_is_refused_by_the_board_s_pip(boards, tmp_path, cache):
    board = boards["bookworm"]
    wheel = next(wheel for wheel in board.house.wheels if wheel.name == "xxhash")
    there = tmp_path / "wheels"
    there.mkdir()
    for file in (wheel.file, board.house.pip.file):
        shutil.copy(board.house.folder / file, there / file.replace("aarch64", "x86_64"))
    (there / "requirements.txt").write_text(f"xxhash=={wheel.version} --hash=sha256:{wheel.sha256}\n")
    with pytest.raises(EmulatedInstallError, match="Could not find a version that satisfies the requirement xxhash"):
        install_emulated(board.land, replace(board.house, folder=there), cache_dir=cache)


@pytest.mark.network
def test_a_wheel_that_lies_about_its_machine_is_found_when_it_is_imported(boards, tmp_path, cache, forged):
    """Its name says aarch64 and its library is for x86-64: pip believes it."""
    import xxhash

    board = boards["bookworm"]
    site = lied_to(board, tmp_path)
    library = next((site / "python3.11/site-packages/xxhash").glob("_xxhash*.so"))
    library.unlink()
    shutil.copy(next(Path(xxhash.__file__).parent.glob("_xxhash*.so")), library)
    found = judgement(replace(board, site=site), "cortex-a72", forged, "litert")
    assert not found.ok
    assert "xxhash is installed and cannot be imported: ImportError" in found.failure


def lied_to(board, folder) -> Path:
    """A copy of what is installed; links where the copy is not written to."""
    site = folder / "site"
    shutil.copytree(board.site, site, copy_function=lambda source, target: Path(target).hardlink_to(source))
    return site


@pytest.mark.network
def test_numpy_2_with_tflite_runtime_is_one_sentence(boards, tmp_path):
    """It installs and imports; an interpreter cannot be made of it."""
    board = boards["bookworm"]
    site = lied_to(board, tmp_path)
    from edgekit.shipping.wheelhouse import collect

    old = collect(load("raspberry-pi-4"), "tflite-runtime", tmp_path / "wheels", extras=())
    (wheel,) = [wheel for wheel in old.wheels if wheel.name == "tflite-runtime"]
    with zipfile.ZipFile(old.folder / wheel.file) as archive:  # as pip puts it there
        archive.extractall(site / "python3.11/site-packages")
    found = judgement(replace(board, site=site), "cortex-a72", tiny.bundle(tmp_path), "tflite-runtime")
    assert not found.ok
    assert "tflite-runtime 2.14.0 cannot make an interpreter with NumPy 2" in found.failure
    assert "pip install 'numpy<2'" in found.failure


@pytest.mark.network
def test_fully_connected_version_12_does_not_load_on_tflite_runtime_and_does_on_litert(
    boards, digits_model, digits, tmp_path
):
    items = [{"image": np.full((8, 8, 1), 0.5, np.float32)}]
    path = tmp_path / "version-12.ekb"
    write_bundle(path, *assemble(contents(dynamic_range(digits_model.model), "tflite-dynamic", items)), [])
    found = judgement(boards["bookworm, 32 bits"], "cortex-a15", path, "tflite-runtime")
    assert not found.ok
    assert "Didn't find op for builtin opcode 'FULLY_CONNECTED' version '12'" in found.failure
    assert judgement(boards["bookworm"], "cortex-a72", path, "litert").ok


@pytest.mark.network
def test_a_program_that_crashes_is_a_result_with_its_signal(boards):
    board = boards["bookworm"]
    with EmulatedBoard(board.land, CPUS["cortex-a72"], site=board.site) as machine:
        done = machine.python(["-c", "import ctypes; ctypes.string_at(0)"])
    assert done.ended == "crashed with SIGSEGV"


@pytest.mark.network
def test_a_program_that_does_not_end_is_ended_and_leaves_nothing(boards):
    board = boards["bookworm"]
    with EmulatedBoard(board.land, CPUS["cortex-a72"], site=board.site) as machine:
        root = machine.root
        done = machine.python(["-c", "while True: pass"], timeout_s=1.5)
        assert done.ended == "did not end in time"
    assert not root.exists()


def test_the_processor_that_gives_wrong_numbers_is_refused():
    with pytest.raises(NotEmulatedError, match="'max' gives wrong INT8 numbers"):
        replay(MODELS / "none.ekb", load("raspberry-pi-4"), cpu="max")


# Instructions, emulated: a ratio and a gate, never milliseconds.


@pytest.fixture(scope="session")
def counts(starts, boards, cache):
    """By processor, the instructions of one inference of each model."""
    board = boards["bookworm, 32 bits"]
    models = [Model(name, "tflite", "tflite-runtime", path) for name, path in COUNTED.items()]
    old = count(board.land, board.site, CPUS["cortex-a15"], models, cache_dir=cache)
    return {cpu: one.counts for cpu, one in starts.items()} | {"cortex-a15": old}


@pytest.mark.network
def test_the_int8_dot_product_runs_where_there_is_one(counts):
    assert counts["cortex-a76"]["cnn_int8"].dot > 10_000
    for cpu in ("cortex-a53", "cortex-a72"):
        assert counts[cpu]["cnn_int8"].dot == 0
    assert all(counts[cpu]["cnn_f32"].fmla > 10_000 for cpu in CPUS_64)


@pytest.mark.network
def test_int8_saves_little_on_a_pi_4_and_much_on_a_pi_5(counts, capsys):
    ratio = {cpu: found["cnn_int8"].all / found["cnn_f32"].all for cpu, found in counts.items()}
    with capsys.disabled():
        for cpu, value in ratio.items():
            print(
                f"\nINT8 / float32 on {cpu}: {value:.3f} (instructions, emulated; under QEMU, not on hardware)", end=""
            )
    assert ratio["cortex-a76"] < 0.75
    assert 0.75 < ratio["cortex-a72"] < 1.1


@pytest.mark.network
def test_counts_stay_within_2_percent_of_the_recorded_ones(counts):
    recorded = json.loads(RECORDED.read_text())["counts"]
    unknown = {}
    for cpu, models in counts.items():
        for model, found in models.items():
            before = recorded.get(found.engine, {}).get(cpu, {}).get(model)
            if before is None:
                unknown.setdefault(found.engine, {}).setdefault(cpu, {})[model] = found.all
            else:
                assert found.all == pytest.approx(before, rel=0.02), f"{model} on {cpu} with {found.engine}"
    if unknown:
        pytest.skip(f"nothing is recorded of {', '.join(unknown)}: add to {RECORDED.name} {json.dumps(unknown)}")
