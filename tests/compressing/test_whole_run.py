"""A network whose plain INT8 loses points: `edgekit compress`, then an ordinary `edgekit build` of the result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import run_edgekit
from recipes import recipe

from benchmarks.compress.qat import network
from edgekit_converters.formats.keras_record import read_record
from edgekit_runtime import open_bundle

pytestmark = pytest.mark.convert
COMMAND = (
    "compress", "net.keras", "--train", "train.npz", "--evaluation", "evaluation.npz", "--max-drop", "1%",
    "--profile", "raspberry-pi-4", "--epochs", "9", "--recipe", "recipe.toml", "-o",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = (pixels / 16).astype(np.float32).reshape(-1, 8, 8, 1)[order], labels.astype(np.int64)[order]
    folder = tmp_path_factory.mktemp("whole")
    network(1, x[:1200], y[:1200]).save(folder / "net.keras")
    np.savez(folder / "train.npz", x=x[:1200], y=y[:1200])
    np.savez(folder / "evaluation.npz", x=x[1200:], y=y[1200:])
    np.savez(folder / "calibration.npz", x=x[:300])
    recipe(folder, batch=32)
    return folder


@pytest.fixture(scope="module")
def compressed(folder):
    """Interrupted with Ctrl-C after its first round, and then run again: what both said, and the report."""
    command = [sys.executable, "-c", "from edgekit.cli import main; main()", *COMMAND, "out"]
    started = subprocess.Popen(
        command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    lines: list[str] = []
    assert started.stderr is not None
    for line in started.stderr:
        lines.append(line)
        if line.startswith("step 100 "):
            started.send_signal(signal.SIGINT)
            break
    lines += started.stderr.readlines()
    started.communicate()
    assert started.returncode == 130, "".join(lines)
    assert "run the same command again" in lines[-1]
    assert (folder / "out" / ".net.compress" / "qat-0.npz").exists()
    assert not (folder / "out" / "net.keras").exists()
    return run_edgekit(*COMMAND, "out", "--json", cwd=folder)


def test_an_interrupted_run_resumes_after_its_last_round(compressed, folder):
    rounds = [line.split()[1] for line in compressed.err.splitlines() if line.startswith("step ") and " of " in line]
    assert rounds[0] == "200"
    assert {path.name for path in (folder / "out").iterdir()} == {
        "net.keras", "net-compress.json", "net-compress.html"
    }  # fmt: skip


def test_most_of_the_drop_comes_back_with_all_products_in_8_bits(compressed):
    report = compressed.json
    assert report["kept"]
    rows = {(row["step"], row["recipe"]): row for row in report["rows"]}
    plain, trained = (rows[what, "tflite-int8"] for what in ("plain INT8", "qat"))
    print(f"plain INT8 {plain['score']:.4f}, trained {trained['score']:.4f}, original {plain['original']:.4f}")
    assert plain["drop"] > 0.02
    assert trained["drop"] < 0.2 * plain["drop"]
    assert trained["int8"] == 1.0
    assert trained["ms"] <= 1.1 * plain["ms"]


def test_an_ordinary_build_packs_pure_int8_with_the_ranges_that_were_learnt(compressed, folder):
    built = run_edgekit(
        "build", "out/net.keras", "--profile", "raspberry-pi-4", "--calibration", "calibration.npz", "--evaluation",
        "evaluation.npz", "--max-drop", "3%", "--recipe", "tflite-int8", "--cache", "cache", "--json", cwd=folder,
    ).json  # fmt: skip
    (bundle,) = built["bundles"]
    assert bundle["recipe"] == "tflite-int8"
    (candidate,) = built["candidates"]
    assert candidate["fidelity"]["quantized_macs"] == 1.0
    learnt = read_record(folder / "out" / "net.keras").ranges["tflite"]
    assert {name: (low, high) for name, low, high in candidate["plan"]["fixed_ranges"]} == learnt
    data = np.load(folder / "evaluation.npz")
    with open_bundle(Path(folder, bundle["path"]), allow_unsigned=True) as model:
        right = [
            int(next(iter(model.predict(x).outputs.values())).argmax()) == y
            for x, y in zip(*data.values(), strict=True)
        ]
    assert np.mean(right) > 0.8


def test_the_same_command_again_makes_nothing(compressed, folder):
    before = (folder / "out" / "net.keras").read_bytes()
    again = run_edgekit(*COMMAND, "out", "--json", cwd=folder)
    assert "nothing to do" in again.err
    assert again.json == compressed.json
    assert (folder / "out" / "net.keras").read_bytes() == before


def test_a_limit_that_plain_int8_keeps_trains_nothing(folder):
    ran = run_edgekit(*COMMAND[:7], "95%", *COMMAND[8:], "none", "--json", cwd=folder)
    assert ran.json["kept"]
    assert "nothing was trained" in ran.json["verdict"]
    assert not (folder / "none" / "net.keras").exists()


def test_the_build_that_needs_float_layers_names_the_command(folder):
    ran = run_edgekit(
        "build", "net.keras", "--profile", "raspberry-pi-4", "--calibration", "calibration.npz", "--evaluation",
        "evaluation.npz", "--max-drop", "1%", "--recipe", "tflite-int8", "--repair-budget", "0", "--cache", "cache",
        cwd=folder,
    )  # fmt: skip
    assert ran.code == 1
    assert "edgekit compress" in ran.out
