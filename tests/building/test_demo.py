"""The demo, run once: what `make demo` promises a stranger."""

from __future__ import annotations

import importlib
import itertools
import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import run_edgekit

from edgekit.demo.assets import steps
from edgekit_runtime.bundle.reader import read_bundle

pytestmark = pytest.mark.convert


def test_runs_through_and_prints_each_command_before_its_output(demo):
    assert demo.ran.code == 0, demo.ran.err
    commands = ("build demo/efficient", "build demo/file_types", "inspect", "run", "bench")
    places = [demo.ran.out.index(f"\nedgekit {command}") for command in commands]
    assert places == sorted(places)
    assert "Done: everything is in demo/" in demo.ran.out
    assert demo.ran.out.splitlines()[-1] == "Next, your own model: edgekit try YOUR_MODEL --like FOLDER_OF_INPUTS"


def test_prints_some_thirty_lines_when_nothing_is_wrong(demo):
    assert 20 <= len(demo.ran.out.splitlines()) <= 35
    assert not re.findall("warning|error|Traceback", demo.ran.err)


def test_off_a_terminal_a_line_each_ten_seconds_says_that_it_works(demo):
    waited = [int(line.split()[0]) for line in demo.ran.err.splitlines() if re.match(r"    \d+ s: ", line)]
    assert waited
    assert all(then - before == 10 or then == 10 for before, then in itertools.pairwise([0, *waited]))


def test_what_the_plain_converter_gives_stands_beside_what_edgekit_gives(demo):
    shown = {line.split("  ")[0]: line for line in map(str.strip, demo.ran.out.splitlines())}
    rows = {c["recipe"]: c for c in report(demo)["candidates"]}
    assert rows["plain_int8.tflite"]["file"] == "demo/plain_int8.tflite"
    assert rows["plain_int8.tflite"]["fidelity"]["quantized_macs"] == 1.0  # INT8 throughout, as its guide promises
    assert f"{rows['plain_int8.tflite']['fidelity']['cosine']:.4f}" in shown["plain TensorFlow"]
    assert f"{rows['tflite-int8']['fidelity']['cosine']:.4f}" in shown["edgekit, tflite-int8"]


def test_a_network_that_plain_int8_breaks_answers_as_its_original_after_edgekit(demo):
    found = json.loads((demo.folder / "bundles" / "file_types-build.json").read_text())
    rows = {c["recipe"]: c["fidelity"] for c in found["candidates"]}
    assert rows["onnx-int8-qdq"]["items"] >= 150
    assert rows["plain_file_types.onnx"]["agreement"] < 0.5
    assert rows["onnx-int8-qdq"]["agreement"] > 0.95
    assert [bundle["decision"]["verdict"] for bundle in found["bundles"]] == ["ship"]
    assert not [finding for finding in found["data"] if finding["code"] == "overlap"]


def test_a_command_that_fails_in_the_demo_says_all_that_it_said(demo, tmp_path):
    broken = tmp_path / "demo"
    shutil.copytree(demo.folder, broken)
    shutil.rmtree(broken / "bundles")
    (broken / "efficientnet_lite0.keras").write_bytes(b"no network")
    ran = run_edgekit("demo", cwd=tmp_path)
    assert ran.code == 1
    assert "error: " in ran.err
    assert "efficientnet_lite0.keras" in ran.err
    assert "edgekit inspect" not in ran.out


@pytest.mark.parametrize("trusts", [True, False])
def test_what_it_built_itself_needs_no_signature_on_a_machine_with_trusted_keys(trusts, tmp_path, monkeypatch):
    module, ran = importlib.import_module("edgekit.cli.demo"), list[tuple[str, ...]]()
    monkeypatch.setenv("EDGEKIT_TRUST", str(tmp_path / "root.json"))
    if trusts:
        (tmp_path / "root.json").touch()
    monkeypatch.setattr("edgekit.demo.assets.make_assets", lambda *given: None)
    monkeypatch.setattr(module, "_show", lambda step, as_json: (ran.append(tuple(step)), (0, {}))[1])
    assert CliRunner().invoke(module.demo, ["--folder", str(tmp_path)]).exit_code == 0
    flagged = [step[0] for step in ran if "--allow-unsigned" in step]
    assert flagged == (["run", "bench"] if trusts else [])


def test_names_the_cat_and_the_coffee_cup_among_the_top_five(demo):
    bundle = "demo/bundles/efficientnet_lite0-raspberry-pi-4.ekb"
    ran = run_edgekit("run", bundle, "demo/chelsea.png", "demo/coffee.png", "--json", cwd=demo.directory)
    cat, coffee = ([best["label"] for best in answer["top"]] for answer in ran.json["answers"])
    assert {"tabby", "tiger cat", "Egyptian cat"} & set(cat)
    assert {"cup", "espresso", "coffee mug"} & set(coffee)
    assert "cup" in coffee


@pytest.mark.parametrize("board", ["raspberry-pi-4", "raspberry-pi-5"])
def test_both_boards_get_an_int8_bundle_within_the_limits(demo, board):
    bundle = read_bundle(demo.folder / "bundles" / f"efficientnet_lite0-{board}.ekb")
    entry = bundle.artifact()
    assert entry.precision == "int8"
    assert entry.fidelity["loss"] <= 0.05 + 1e-9
    assert entry.estimate["high_ms"] <= 100
    assert len(bundle.manifest.golden) == 4


@pytest.mark.parametrize("board", ["raspberry-pi-4", "raspberry-pi-5"])
def test_what_the_demo_built_installs_where_both_engines_are_and_either_artifact_may_win(demo, board, tmp_path):
    bundle = demo.folder / "bundles" / f"efficientnet_lite0-{board}.ekb"
    command = ("install", bundle, "--root", tmp_path / "root", "--allow-unsigned", "--profile", board, "--json")
    ran = run_edgekit(*command, cwd=tmp_path, EDGEKIT_TUNE="5")
    assert ran.code == 0, ran.err
    assert ran.json["state"] == "committed"
    assert ran.json["trial"]["recipe"] in {entry.recipe for entry in read_bundle(bundle).manifest.artifacts}


def report(demo):
    return json.loads((demo.folder / "bundles" / "efficientnet_lite0-build.json").read_text())


@pytest.mark.parametrize(("int8", "float32"), [("tflite-int8", "tflite-f32"), ("onnx-int8-qdq", "onnx-f32")])
def test_int8_takes_at_most_three_tenths_of_float(demo, int8, float32):
    sizes = {c["recipe"]: c["bytes"] for c in report(demo)["candidates"]}
    assert sizes[int8] / sizes[float32] <= 0.30


def test_nothing_that_is_evaluated_or_asked_about_was_calibrated_with(demo):
    assert not [finding for finding in report(demo)["data"] if finding["code"] == "overlap"]
    names = {path.name.split("_")[0] for path in (demo.folder / "photos").iterdir()}
    assert not names & {"imagenet", "chelsea", "coffee"}


def test_a_second_run_keeps_the_network_and_the_photos(demo):
    from edgekit.demo.assets import make_assets

    before = (demo.folder / "efficientnet_lite0.keras").stat().st_mtime_ns
    make_assets(demo.folder, lambda *progress: pytest.fail(f"made {progress} again"))
    assert (demo.folder / "efficientnet_lite0.keras").stat().st_mtime_ns == before


def test_a_throttled_device_goes_to_the_host_and_comes_home(demo):
    ran = run_edgekit("demo", "--fallback", "--json", cwd=demo.directory)
    assert [check for check in ran.json["checks"] if check["problem"]] == []
    assert len(ran.json["checks"]) == 5
    assert ran.code == 0


def test_the_builders_page_shows_the_artifacts_and_boards_of_the_demo(demo):
    page = (Path(__file__).parents[2] / "docs" / "builder.md").read_text(encoding="utf-8")
    shown = page.split("## The summary, line by line")[1].split("\n## ")[0]
    blocks = [block.split("```")[0] for block in shown.split("```text\n")[1:]]
    (table,) = (block for block in blocks if block.startswith("artifact "))
    # what the demo made is made no second time
    out = run_edgekit(*steps(Path("demo"))[0], cwd=demo.directory).out
    printed = out[out.index("artifact ") :].splitlines()
    assert [line.split()[0] for line in table.splitlines()] == [
        line.split()[0] for line in printed[: table.count("\n")]
    ]
    (board,) = (block for block in blocks if block.startswith("raspberry-pi-4: "))
    first = board.splitlines()[0]
    (recipe,) = (bundle["recipe"] for bundle in report(demo)["bundles"] if bundle["profile"] == "raspberry-pi-4")
    assert first.startswith(f"raspberry-pi-4: {recipe} -> ")
    assert first in out.splitlines()
    assert "there are no labels, so it was compared with your model's answers alone" in out


def test_of_three_hundred_crops_edgekit_answers_more_as_the_original_does_than_the_plain_converter(demo):
    rows = {c["recipe"]: c["fidelity"]["agreement"] for c in report(demo)["candidates"]}
    assert max(rows["tflite-int8"], rows["onnx-int8-qdq"]) > rows["plain_int8.tflite"]
    assert rows["onnx-int8-qdq"] >= 0.98
    assert "Ship it" in demo.ran.out
