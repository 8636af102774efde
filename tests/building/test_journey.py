"""The build, as a person runs it, on scikit-learn's digits: both formats, real boards, honest refusals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from conftest import run_edgekit
from PIL import Image

from edgekit_runtime import open_bundle
from edgekit_runtime.bundle.reader import read_bundle

pytestmark = pytest.mark.convert
RECIPES = ["tflite-int8", "tflite-f32", "tflite-dynamic", "onnx-int8-qdq", "onnx-f32"]


@pytest.fixture(scope="module")
def built(digits_model, tmp_path_factory):
    """One build for every board: its folder, exit code and JSON."""
    folder = tmp_path_factory.mktemp("built")
    profiles = [part for name in BOARDS for part in ("--profile", name)]
    ran = run_edgekit(
        "build", digits_model.model, *profiles, "--calibration", digits_model.calibration,
        "--evaluation", digits_model.evaluation, "--max-drop", "1%", "--budget-ms", "50", "-o", "out", "--json",
        cwd=folder,
    )  # fmt: skip
    return folder, ran


BOARDS = ["raspberry-pi-4", "raspberry-pi-5", "x86-64", "jetson-nano"]


def test_one_json_object_with_every_promised_key(built):
    report = built[1].json
    assert report.keys() >= {"model", "bundles", "report", "seconds"}
    assert report["model"].keys() == {"path", "sha256", "format", "task"}
    for bundle in report["bundles"]:
        assert bundle.keys() >= {"profile", "path", "recipe", "bytes", "fidelity", "estimate", "refused"}
        for refusal in bundle["refused"]:
            assert refusal.keys() == {"recipe", "reason", "code", "do", "rule"}


def test_each_of_its_bundles_installs_where_both_engines_are(built, tmp_path):
    folder, ran = built
    packed = [bundle for bundle in ran.json["bundles"] if bundle["path"]]
    assert packed
    for bundle in packed:
        asked = ("--root", tmp_path / bundle["profile"], "--allow-unsigned", "--profile", bundle["profile"], "--json")
        done = run_edgekit("install", folder / bundle["path"], *asked, cwd=folder)
        assert (done.code, done.json.get("state")) == (0, "committed"), done.err or done.json


def test_every_recipe_is_chosen_or_refused_once_with_a_reason(built):
    for bundle in built[1].json["bundles"]:
        accounted = [kept["recipe"] for kept in bundle["refused"] + bundle["alternates"]] + [bundle["recipe"]]
        assert sorted(filter(None, accounted)) == sorted(RECIPES)
        assert all(r["reason"] for r in bundle["refused"])


@pytest.mark.parametrize("recipe", ["tflite-int8", "onnx-int8-qdq"])
def test_int8_loses_at_most_half_a_point_on_held_out_digits(built, recipe):
    found = next(c["fidelity"] for c in built[1].json["candidates"] if c["recipe"] == recipe)
    assert found["items"] >= 500
    low, high = found["ci95"]
    line = f"{recipe}: drop {100 * found['drop']:.2f} points, 95 % interval {100 * low:.2f} to {100 * high:.2f}"
    print(line)
    assert found["drop"] <= 0.005, line
    assert low <= found["drop"] <= high


def test_a_board_that_no_wheel_serves_is_refused_everything_for_that_reason(built):
    jetson = next(b for b in built[1].json["bundles"] if b["profile"] == "jetson-nano")
    assert jetson["path"] is None
    assert {r["code"] for r in jetson["refused"]} == {"runtime-unavailable"}
    assert all("Python 3.6" in r["reason"] for r in jetson["refused"])
    assert built[1].code == 1


def test_the_report_has_what_its_page_shows(built):
    report = built[1].json
    assert report.keys() >= {"command", "tools", "random_data", "page", "data"}
    assert report["random_data"] is False
    assert report["command"].endswith("--json")
    assert {"edgekit-deploy", "onnxruntime"} <= report["tools"].keys()
    for candidate in report["candidates"]:
        assert candidate.keys() >= {
            "plan",
            "layers",
            "causes",
            "histograms",
            "disagreements",
            "size_breakdown",
            "repair",
        }
    int8 = next(c for c in report["candidates"] if c["recipe"] == "tflite-int8")
    assert {"layer", "sqnr_db", "quantized"} <= int8["layers"][0].keys()
    assert len(int8["histograms"][0]["artifact"]) == len(int8["histograms"][0]["edges"]) - 1
    pi = report["bundles"][0]
    assert {c["recipe"] for c in pi["candidates"]} == set(RECIPES)
    assert all(c["memory_bytes"] > 0 and c["estimate"] for c in pi["candidates"])
    assert "<html" in (built[0] / report["page"]).read_text()


def test_the_runner_up_of_another_engine_travels_with_the_chosen_one(built):
    folder, ran = built
    bundle = ran.json["bundles"][0]
    entries = read_bundle(folder / bundle["path"]).manifest.artifacts
    assert [entry.role for entry in entries] == ["primary", "alternate"]
    assert [entry.recipe for entry in entries[1:]] == [kept["recipe"] for kept in bundle["alternates"]]


def test_each_artifact_has_the_scores_that_drift_is_measured_against(built):
    folder, ran = built
    packed = [bundle for bundle in ran.json["bundles"] if bundle["path"]]
    for bundle in packed:
        for entry in read_bundle(folder / bundle["path"]).manifest.artifacts:
            assert len(entry.top_scores) == 10
            assert sum(entry.top_scores) == bundle["fidelity"]["items"]
            assert entry.top_scores[9] > 0.5 * sum(entry.top_scores)  # sure of most digits
            assert "top_scores" not in entry.fidelity


def test_an_unchanged_rebuild_makes_nothing_again(built, digits_model, tmp_path):
    again = run_edgekit(
        "build", digits_model.model, "--profile", "raspberry-pi-4", "--profile", "x86-64", "--calibration",
        digits_model.calibration, "--evaluation", digits_model.evaluation, "--max-drop", "1%", "--budget-ms", "50",
        "--json",
        cwd=tmp_path,
    )  # fmt: skip
    assert "running the original" not in again.err
    assert "evaluating" not in again.err
    for mine, first in zip(again.json["bundles"], built[1].json["bundles"][::2], strict=False):
        assert (mine["profile"], mine["recipe"], mine["fidelity"]) == (
            first["profile"], first["recipe"], first["fidelity"],
        )  # fmt: skip


def test_where_a_model_cannot_be_all_int8_it_is_made_with_layers_in_float(divided, edgekit, tmp_path):
    ran = edgekit(
        "build", divided / "divided.keras", "--profile", "raspberry-pi-4", "--calibration", divided / "x.npz",
        "--recipe", "tflite-int8", "--recipe", "tflite-f32", "--batch", "4", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    (bundle,) = ran.json["bundles"]
    entries = read_bundle(tmp_path / bundle["path"]).manifest.artifacts
    assert [(entry.role, entry.inputs[0].shape[0]) for entry in entries if entry.role != "alternate"] == [
        ("primary", 1), ("batch", 4),
    ]  # fmt: skip
    assert [one["batch"] for one in bundle["batches"]] == [4]
    assert {c["recipe"] for c in ran.json["candidates"]} == {"tflite-int8-mixed", "tflite-f32"}
    refused = next(r for r in bundle["refused"] if r["recipe"] == "tflite-int8")
    assert refused["code"] == "conversion-failed"
    assert "DIV" in refused["reason"]


@pytest.mark.parametrize("command", ["build", "try"])
def test_an_interrupted_build_says_that_the_next_one_goes_on(digits_model, tmp_path, command):
    arguments = [
        command, str(digits_model.model), "--profile", "raspberry-pi-4", "--calibration", str(digits_model.calibration),
        "-o", "out", *(["--cache", "cache"] if command == "build" else []),
    ]  # fmt: skip
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", "from edgekit.cli import main; main()", *arguments],
        cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), "EDGEKIT_ISOLATE": "", "XDG_CACHE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if " calibration " in line:  # well before the first bundle
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.strip().splitlines()[-1] == "interrupted; run the same command again to resume"
    assert "Traceback" not in err
    assert out == ""
    assert not list(tmp_path.glob("out/*.ekb"))
    assert not list(tmp_path.glob("tmp/*"))
    assert list(tmp_path.rglob("*.entry"))
    again = run_edgekit(*arguments, cwd=tmp_path)
    assert again.code == 0
    assert "running the original" not in again.err or command == "try"  # whose cache is this account's


def test_a_first_look_without_data_says_that_it_made_some_up(digits_model, edgekit):
    ran = edgekit(
        "build",
        digits_model.model,
        "--profile",
        "raspberry-pi-4",
        "--allow-random",
        "--recipe",
        "tflite-int8",
        "--json",
    )
    assert ran.json["random_data"] is True
    assert "random-data" in {finding["code"] for finding in ran.json["data"]}


def test_the_other_boards_get_their_bundles_all_the_same(built):
    folder, ran = built
    for bundle in ran.json["bundles"][:3]:
        opened = read_bundle(folder / bundle["path"])
        assert opened.manifest.target.profile == bundle["profile"]
        assert opened.artifact().recipe == bundle["recipe"]
        assert opened.artifact().bytes == bundle["bytes"]


def test_estimates_have_a_grade_and_this_machines_own_profile_is_measured(built):
    grades = {b["profile"]: b["estimate"]["grade"] for b in built[1].json["bundles"] if b["estimate"]}
    assert grades["raspberry-pi-4"] in ("anchored", "estimated")
    assert grades["x86-64"] == "measured"
    for bundle in built[1].json["bundles"][:3]:
        e = bundle["estimate"]
        assert e["low_ms"] <= e["mid_ms"] <= e["high_ms"] <= 50


def test_the_bundle_answers_as_the_report_promised(built, digits_model):
    folder, ran = built
    bundle = ran.json["bundles"][0]
    with np.load(digits_model.evaluation) as data:
        x, y = data["x"], data["y"]
    with open_bundle(folder / bundle["path"]) as model:
        right = sum(model.predict(item).top(1)[0].index == label for item, label in zip(x, y, strict=True))
    assert right / len(y) == pytest.approx(bundle["fidelity"]["artifact"], abs=1e-9)


def test_the_report_on_disk_is_the_one_that_was_printed(built):
    folder, ran = built
    assert json.loads((folder / ran.json["report"]).read_text()) == ran.json


@pytest.mark.parametrize("recipe", ["tflite-int8", "onnx-int8-qdq"])
def test_the_same_inputs_give_the_same_bundle_but_for_what_a_clock_said(digits_model, tmp_path, recipe):
    """The estimate may rest on a time taken on the workstation, which is another one each time it is taken.

    One recipe a bundle, because such a time may decide whether a runner-up is kept."""
    manifests = []
    for name in ("first", "again"):
        ran = run_edgekit(
            "build", digits_model.model, "--profile", "raspberry-pi-4", "--calibration", digits_model.calibration,
            "--evaluation", digits_model.evaluation, "--max-drop", "1%", "--budget-ms", "50", "-o", name, "--json",
            "--recipe", recipe, "--no-cache", cwd=tmp_path,
        )  # fmt: skip
        manifests.append(_but_for_times(tmp_path / ran.json["bundles"][0]["path"], tmp_path))
    assert manifests[0] == manifests[1]


def _but_for_times(bundle, folder):
    """The manifest, which names every blob by its SHA-256, without the artifacts' estimates."""
    manifest = run_edgekit("inspect", bundle, "--json", cwd=folder).json["manifest"]
    for artifact in manifest["artifacts"]:
        assert artifact.pop("estimate")["mid_ms"] > 0
    return manifest


def test_without_an_evaluation_set_a_part_of_the_calibration_is_held_out_and_it_is_said(digits_model, edgekit):
    ran = edgekit(
        "build", digits_model.model, "--profile", "raspberry-pi-5", "--calibration", digits_model.calibration,
        "--recipe", "tflite-int8", "--json",
    )  # fmt: skip
    (bundle,) = ran.json["bundles"]
    assert bundle["fidelity"]["held_out"] is True
    assert bundle["fidelity"]["items"] == 40
    assert bundle["fidelity"]["metric"] is None
    assert bundle["fidelity"]["agreement"] > 0.9


def test_an_impossible_limit_refuses_everything_and_exits_1(digits_model, edgekit):
    ran = edgekit(
        "build", digits_model.model, "--profile", "raspberry-pi-4", "--evaluation", digits_model.evaluation,
        "--calibration", digits_model.calibration, "--budget-ms", "0.001", "--recipe", "tflite-int8",
        "--recipe", "onnx-f32",
    )  # fmt: skip
    assert ran.code == 1
    assert "raspberry-pi-4: no bundle" in ran.out
    assert ran.out.count("above the budget of 0.001 ms") == 2


def test_an_onnx_source_makes_onnx_artifacts(digits_onnx, digits_model, edgekit, tmp_path):
    for given in (digits_model.calibration, digits_model.evaluation):  # this graph takes its channels first
        with np.load(given) as data:
            arrays = {name: data[name].transpose(0, 3, 1, 2) if name == "x" else data[name] for name in data}
        np.savez(tmp_path / given.name, **arrays)
    ran = edgekit(
        "build", digits_onnx, "--profile", "x86-64", "--calibration", "calibration.npz", "--evaluation",
        "evaluation.npz", "--recipe", "onnx-int8-qdq", "--recipe", "onnx-f32", "--json",
    )  # fmt: skip
    assert ran.code == 0
    found = {c["recipe"]: c["fidelity"] for c in ran.json["candidates"]}
    assert found["onnx-f32"]["agreement"] == 1.0
    assert found["onnx-int8-qdq"]["drop"] <= 0.005


def test_a_signed_build_opens_only_for_its_key(digits_model, edgekit, tmp_path):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    encoding = serialization.Encoding.PEM
    (tmp_path / "key.pem").write_bytes(
        private.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (tmp_path / "key.pub.pem").write_bytes(
        private.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    ran = edgekit(
        "build", digits_model.model, "--profile", "raspberry-pi-4", "--calibration", digits_model.calibration,
        "--recipe", "tflite-f32", "--sign", "key.pem", "--json",
    )  # fmt: skip
    path = tmp_path / ran.json["bundles"][0]["path"]
    assert edgekit("inspect", path, "--trust", "key.pub.pem", "--json").json["trusted"] is True
    assert edgekit("inspect", path).out.count("not checked (give --trust FILE)") == 1


@pytest.fixture
def case(digits_model, tmp_path):
    """A folder with one of everything that is wrong."""
    shutil.copy(digits_model.model, tmp_path / "good.keras")
    (tmp_path / "text.onnx").write_text("this is not a model")
    (tmp_path / "empty.keras").write_bytes(b"")
    (tmp_path / "bare").mkdir()
    (tmp_path / "file").write_text("")
    np.savez(tmp_path / "noise.npz", y=np.zeros(3))
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "photos" / "a.png")
    shutil.copy(digits_model.calibration, tmp_path / "c.npz")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["absent.keras", "--profile", "x86-64", "--calibration", "c.npz"], "absent.keras"),
        (["empty.keras", "--profile", "x86-64", "--calibration", "c.npz"], "empty.keras"),
        (["text.onnx", "--profile", "x86-64", "--calibration", "c.npz"], "text.onnx"),
        (["c.npz", "--profile", "x86-64", "--calibration", "c.npz"], "c.npz"),
        (["good.keras", "--profile", "raspbery-pi-4", "--calibration", "c.npz"], "raspberry-pi-4"),
        (["good.keras", "--profile", "x86-64", "--calibration", "bare"], "bare"),
        (["good.keras", "--profile", "x86-64", "--calibration", "absent"], "absent"),
        (["good.keras", "--profile", "x86-64", "--calibration", "noise.npz"], "noise.npz"),
        (["good.keras", "--profile", "x86-64"], "--calibration"),
        (["good.keras", "--profile", "x86-64", "--calibration", "c.npz", "--recipe", "tflite-int4"], "tflite-int8"),
        (["good.keras", "--profile", "x86-64", "--calibration", "c.npz", "-o", "file/out"], "file/out"),
        (["good.keras", "--profile", "x86-64", "--calibration", "c.npz", "-o", "/proc/no"], "/proc/no"),
        (["good.keras", "--profile", "x86-64", "--calibration", "c.npz", "--sign", "file"], "openssl genpkey"),
        (["good.keras", "--profile", "x86-64", "--calibration", "c.npz", "--contract", "absent.toml"], "absent.toml"),
    ],
    ids=["absent", "empty", "text", "no model", "profile", "no images", "no set", "no x", "no data", "recipe", "output",
         "no permission", "key", "contract"],
)  # fmt: skip
def test_bad_input_is_one_clear_error_that_names_it(case, in_process, arguments, says):
    told = in_process("build", *arguments)
    assert (told.code, told.out) == (1, "")
    message = told.err.strip().splitlines()[-1]
    assert message.startswith("error: ")
    assert says in message
    asked = in_process("build", *arguments, "--json")
    assert asked.json["error"].keys() == {"code", "what", "where", "do"}


def test_a_person_sees_the_same_error(case, edgekit):
    told = edgekit("build", "text.onnx", "--profile", "x86-64", "--calibration", "c.npz")
    assert (told.code, told.out) == (1, "")
    assert "text.onnx" in told.err.strip().splitlines()[-1]


def test_nothing_half_written_is_left_behind(built):
    names = sorted(path.name for path in (built[0] / "out").iterdir())
    assert names == sorted([f"digits-{board}.ekb" for board in BOARDS[:3]] + ["digits-build.json", "digits-build.html"])
