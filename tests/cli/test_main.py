"""What every command does: help at once, errors without a traceback, one JSON object."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import tiny

FRAMEWORKS = ("tensorflow", "keras", "onnx", "onnxruntime", "ai_edge_litert", "numpy", "rich", "PIL")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["build", "--help"], ["run", "--help"], ["profiles", "--help"], ["--version"]]
)
def test_help_imports_no_framework(arguments):
    script = (
        "import sys\n"
        "from edgekit.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: code = end.code\n"
        f"print([name for name in {FRAMEWORKS!r} if name in sys.modules], code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
    assert done.stdout.strip().splitlines()[-1] == "[] 0", done.stdout + done.stderr


def test_help_lists_every_command(edgekit):
    from edgekit.cli.main import COMMANDS

    out = edgekit("--help").out
    assert all(f"\n  {name} " in out for name in COMMANDS)


def test_a_misspelt_command_is_told_the_near_one(edgekit):
    ran = edgekit("biuld")
    assert ran.code == 2
    assert "Did you mean build?" in ran.err


@pytest.mark.parametrize("arguments", [["run"], ["build", "m.keras"], ["bench"], ["build", "m", "--max-drop", "0.01"]])
def test_wrong_usage_is_two(edgekit, arguments):
    assert edgekit(*arguments).code == 2


def test_wrong_usage_with_json_is_one_error_object(edgekit):
    ran = edgekit("build", "m.keras", "--json")
    assert ran.code == 2
    assert ran.json["error"]["code"] == "usage"


def test_a_percentage_needs_its_sign(edgekit):
    assert "write it as 1%" in edgekit("build", "m", "--profile", "raspberry-pi-4", "--max-drop", "1").err


@pytest.mark.parametrize("command", ["inspect", "bench", "run"])
def test_a_refusal_is_one_sentence_or_one_object(edgekit, command, tmp_path):
    (tmp_path / "x.ekb").write_text("hello")
    inputs = ["cat.png"] if command == "run" else []
    told = edgekit(command, "x.ekb", *inputs)
    assert (told.code, told.out) == (1, "")
    assert told.err.startswith("error: x.ekb: this is not an edgekit bundle")
    asked = edgekit(command, "x.ekb", *inputs, "--json")
    assert asked.code == 1
    assert asked.json["error"] == {
        "code": "bundle-format",
        "what": "this is not an edgekit bundle",
        "where": "x.ekb",
        "do": "Pass a file that `edgekit build` wrote",
    }


def test_an_unknown_profile_is_told_the_near_ones(edgekit):
    ran = edgekit("profiles", "show", "rasberry-pi4", "--json")
    assert ran.code == 1
    assert "raspberry-pi-4" in ran.json["error"]["do"] + ran.json["error"]["what"]


def test_profiles_are_listed_for_people_and_for_programs(edgekit):
    assert "raspberry-pi-4" in edgekit("profiles", "list").out
    listed = {p["name"]: p for p in edgekit("profiles", "list", "--json").json["profiles"]}
    assert listed["jetson-nano"]["engines"] == []
    assert "litert" in listed["raspberry-pi-5"]["engines"]


def test_a_profile_shows_its_figures_with_their_sources(edgekit):
    shown = edgekit("profiles", "show", "raspberry-pi-4")
    assert "cortex-a72" in shown.out
    assert "source" in shown.out


def test_doctor_lists_engines_and_how_to_add_what_is_missing(edgekit):
    found = edgekit("doctor", "--json").json
    assert found["ok"] is True
    assert found["extras"]["litert"]["installed"]
    assert "pip install 'edgekit-deploy[tflite]'" in edgekit("doctor").out


def test_doctor_names_combinations_that_cannot_work():
    from edgekit.cli.doctor import examine

    versions = {"numpy": "2.1.0", "tflite-runtime": "2.14.0", "onnxruntime": "1.31", "onnxruntime-gpu": "1.31"}
    found = examine(versions.get)
    assert not found["ok"]
    assert [problem["do"] for problem in found["problems"]] == [
        "pip install 'numpy<2'",
        "pip uninstall onnxruntime onnxruntime-gpu, then install one of them",
    ]
    assert "no engine is installed" in examine({"numpy": "2.1.0"}.get)["problems"][0]["what"]


def test_a_reader_that_stops_early_is_no_error(tmp_path):
    bundle = tiny.bundle(tmp_path)
    command = f'"{sys.executable}" -c "from edgekit.cli import main; main()" inspect "{bundle}" --json | head -c 10'
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX")
def test_ctrl_c_ends_with_130_and_no_traceback(tmp_path):
    bundle = tiny.bundle(tmp_path)
    command = [sys.executable, "-c", "from edgekit.cli import main; main()", "bench", str(bundle), "-n", "100000000"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stderr.readline().startswith("timing 1/100000000")
    child.send_signal(signal.SIGINT)
    _, err = child.communicate()
    assert child.returncode == 130, err
    assert "Traceback" not in err
