"""What every command does: help at once, errors without a traceback, one JSON object."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from edgekit_runtime.system.board import Cpu
from edgekit_runtime.system.errors import install_command

ARM = Cpu("aarch64")
FRAMEWORKS = ("tensorflow", "keras", "onnx", "onnxruntime", "ai_edge_litert", "numpy", "rich", "PIL")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["build", "--help"], ["run", "--help"], ["profiles", "--help"], ["--version"]]
)
def test_help_imports_no_framework(arguments):
    script = (
        "import sys\nfrom edgekit.cli import main\ntry: main(sys.argv[1:])\nexcept SystemExit as end: code = "
        f"end.code\nprint([name for name in {FRAMEWORKS!r} if name in sys.modules], code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
    assert done.stdout.strip().splitlines()[-1] == "[] 0", done.stdout + done.stderr


def test_help_lists_every_command(edgekit):
    from edgekit.cli.main import COMMANDS

    out = edgekit("--help").out
    assert all(f"\n  {name} " in out for name in COMMANDS)


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "edgekit", "biuld"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: edgekit " in done.stderr


def test_a_misspelt_command_is_told_the_near_one(edgekit):
    ran = edgekit("biuld")
    assert ran.code == 2
    assert "Did you mean build?" in ran.err


@pytest.mark.parametrize("arguments", [["run"], ["build", "m.keras"], ["bench"], ["build", "m", "--max-drop", "0.01"]])
def test_wrong_usage_is_two(in_process, arguments):
    ran = in_process(*arguments)
    assert ran.code == 2
    assert ran.err.splitlines()[-1].startswith("error: ")
    assert ran.err.endswith(" [usage]\n")


def test_wrong_usage_with_json_is_one_error_object(edgekit):
    ran = edgekit("build", "m.keras", "--json")
    assert ran.code == 2
    assert ran.json["error"]["code"] == "usage"


def test_a_percentage_needs_its_sign(in_process):
    for given, advice in (("1", "1%"), ("0.5", "0.5%"), ("some", "1%")):
        ran = in_process("build", "m", "--profile", "raspberry-pi-4", "--max-drop", given)
        assert f"write it as {advice}" in ran.err


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


@pytest.mark.convert
def test_inputs_larger_than_memory_are_one_sentence_or_one_object(edgekit, tmp_path):
    onnx = pytest.importorskip("onnx")
    image = onnx.helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, ["N", 3, "H", "W"])
    mean = onnx.helper.make_tensor_value_info("mean", onnx.TensorProto.FLOAT, ["N", 3, 1, 1])
    node = onnx.helper.make_node("GlobalAveragePool", ["image"], ["mean"])
    graph = onnx.helper.make_graph([node], "net", [image], [mean])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "net.onnx")
    asked = ["build", "net.onnx", "--profile", "raspberry-pi-4", "--allow-random", "--shape", "image=1,3,999999,999999"]
    told = edgekit(*asked)
    assert (told.code, told.out) == (1, "")
    assert told.err.splitlines()[-1].startswith("error: out of memory: 10.9 TiB requested. Use smaller inputs")
    assert "Traceback" not in told.err
    error = edgekit(*asked, "--json").json["error"]
    assert error["code"] == "memory"
    assert "--jobs 1" in error["do"]


def test_a_cache_that_is_a_file_is_refused_at_once(edgekit, tmp_path):
    (tmp_path / "afile").write_text("mine")
    asked = ["build", "net.onnx", "--profile", "raspberry-pi-4", "--allow-random", "--cache", "afile", "--json"]
    error = edgekit(*asked).json["error"]
    assert (error["code"], error["where"]) == ("output", "afile")
    assert not (tmp_path / "bundles").exists()


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
    assert install_command("tflite") in edgekit("doctor").out


def test_doctor_says_what_an_extra_that_is_there_in_part_still_lacks():
    from edgekit.cli.doctor import doctor_lines, examine

    installed = {"torch": "2.9", "onnx": "1.19", "onnxscript": "0.5", "onnxslim": "0.1", "onnxruntime": "1.23"}
    found = examine(installed.get, ARM)
    (line,) = [line for line in doctor_lines(found) if " torch  " in line]
    assert line.endswith(f"{install_command('torch')} (rfc8785, rich, jinja2 missing)")


def test_doctor_names_combinations_that_cannot_work():
    from edgekit.cli.doctor import examine

    versions = {"numpy": "2.1.0", "tflite-runtime": "2.14.0", "onnxruntime": "1.31", "onnxruntime-gpu": "1.31"}
    found = examine(versions.get, ARM)
    assert not found["ok"]
    assert [problem["do"] for problem in found["problems"]] == [
        "pip install 'numpy<2'",
        "pip uninstall onnxruntime onnxruntime-gpu, then install one of them",
    ]
    assert "no engine is installed" in examine({"numpy": "2.1.0"}.get, ARM)["problems"][0]["what"]


@pytest.mark.parametrize(
    ("cpu", "noted"),
    [
        (Cpu("x86_64", frozenset({"avx2"})), True),
        (Cpu("x86_64", frozenset({"avx2", "avx512_vnni"})), False),
        (Cpu("x86_64", frozenset({"avx2", "avx_vnni"})), False),
        (ARM, False),
    ],
    ids=["AVX2 alone", "AVX-512 VNNI", "AVX VNNI", "ARM"],
)
def test_doctor_says_where_exact_arithmetic_costs_time(cpu, noted):
    from edgekit.cli.doctor import doctor_lines, examine

    found = examine({"numpy": "2.1.0"}.get, cpu)
    assert found["lacks_vnni"] is noted
    assert any("no VNNI" in line for line in doctor_lines(found)) is noted


EDGEKIT = f'"{sys.executable}" -c "from edgekit.cli import main; main()"'


@pytest.mark.skipif(os.name == "nt", reason="sh is POSIX")
@pytest.mark.parametrize("command", ['inspect "{bundle}"', 'inspect "{bundle}" --json', "--help", "doctor"])
def test_a_reader_that_stops_early_is_no_error(tmp_path, command):
    """The reader is gone before the first word is printed."""
    command = command.format(bundle=tiny.bundle(tmp_path))
    script = f"mkfifo pipe; (sleep 0.01 <pipe) & exec 3>pipe; wait; {EDGEKIT} {command} >&3; echo $? >code"
    done = subprocess.run(script, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert ((tmp_path / "code").read_text(), done.stderr) == ("0\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("command", ['inspect "{bundle}"', "doctor --json", "inspect absent.ekb --json", "--help"])
def test_a_full_disk_behind_stdout_is_one_sentence(tmp_path, command):
    command = command.format(bundle=tiny.bundle(tmp_path))
    done = subprocess.run(f"{EDGEKIT} {command} >/dev/full", shell=True, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "error: cannot write the result: No space left on device. Free some space, or write it elsewhere [output]\n"
    )


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX")
@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_ends_with_130_and_no_traceback(tmp_path, as_json):
    bundle = tiny.bundle(tmp_path)
    command = [sys.executable, "-c", "from edgekit.cli import main; main()", "bench", str(bundle), "-n", "100000000"]
    child = subprocess.Popen(
        [*command, *(["--json"] if as_json else [])], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stderr.readline().startswith("timing 0/100000000")
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert "Traceback" not in err
    if as_json:
        assert json.loads(out)["error"]["code"] == "interrupted"
    else:
        assert (out, err.splitlines()[-1]) == ("", "interrupted")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_fault_of_edgekits_own_is_one_object_too_and_keeps_its_traceback(monkeypatch, capsys, as_json):
    from edgekit.cli import doctor
    from edgekit.cli.main import main

    def broken(*_):
        raise RuntimeError("\nno such thing\n  File 'x.py', line 8\n  File 'y.py', line 9")

    monkeypatch.setattr(doctor, "examine", broken)
    with pytest.raises(SystemExit) as end:
        main(["doctor", *(["--json"] if as_json else [])])
    out, err = capsys.readouterr()
    assert end.value.code == 1
    assert "Traceback" in err
    told = json.loads(out)["error"] if as_json else {"code": "internal", "what": "RuntimeError: no such thing"}
    assert out or not as_json
    assert as_json or err.splitlines()[-1].startswith("error: RuntimeError: no such thing. ")
    assert as_json or err.endswith(" [internal]\n")
    assert (told["code"], told["what"]) == ("internal", "RuntimeError: no such thing")


@pytest.mark.parametrize("arguments", [["profiles", "--json"], ["profiles", "show", "--json"], ["build", "--json"]])
def test_usage_as_json_names_the_command_whose_help_to_read(in_process, arguments):
    ran = in_process(*arguments)
    assert ran.code == 2
    assert ran.json["error"]["do"] == f"edgekit {' '.join(arguments[:-1])} --help"


@pytest.mark.parametrize("budget", ["nan", "inf", "-inf", "0", "-1"])
@pytest.mark.parametrize("command", [["build", "m", "--profile", "x86-64"], ["run", "b.ekb", "cat.png"]])
def test_a_budget_is_a_finite_number_above_zero(in_process, command, budget):
    ran = in_process(*command, "--budget-ms", budget)
    assert (ran.code, "--budget-ms" in ran.err) == (2, True)


@pytest.mark.parametrize("threads", ["0", "257", "2147483648"])
@pytest.mark.parametrize("command", [["bench", "b.ekb"], ["run", "b.ekb", "cat.png"]])
def test_threads_have_a_bound(in_process, command, threads):
    ran = in_process(*command, "--threads", threads)
    assert (ran.code, "--threads" in ran.err) == (2, True)


def test_json_has_null_where_a_number_is_not_finite(capsys):
    from edgekit.cli.printing import print_json

    print_json({"a": [1.5, float("nan"), (float("inf"), 2)], "b": {"c": -float("inf")}, "d": "NaN"})
    assert json.loads(capsys.readouterr().out) == {"a": [1.5, None, [None, 2]], "b": {"c": None}, "d": "NaN"}


def test_a_workstations_command_on_an_older_python_says_which_it_needs():
    from edgekit.cli.main import COMMANDS, WORKSTATION, check_python
    from edgekit.packaging.output_errors import PythonVersionError

    assert set(COMMANDS) > WORKSTATION
    with pytest.raises(PythonVersionError, match=r"`edgekit build` needs Python 3\.11, and this is Python 3\.10"):
        check_python("build", (3, 10))
    for command in ("run", "install", "verify", "status", "bench"):
        check_python(command, (3, 10))
    check_python("build", (3, 11))


LONG = "x" * 300
TOO_LONG = {
    "a model": ("build", f"{LONG}.keras", "--profile", "x86-64"),
    "a profile": ("profiles", "show", LONG),
    "a key": ("keys", "trust", LONG),
    "an output": ("profiles", "measure", "-o", LONG),
    "a contract that would lie beside a model": ("contract", f"{'x' * 246}.tflite"),
    "a store": ("fleet", "alerts", "--store", f"sqlite:///{LONG}"),
}


@pytest.mark.parametrize("arguments", TOO_LONG.values(), ids=TOO_LONG)
def test_a_name_that_no_file_can_have_is_a_usage_error(in_process, arguments):
    ran = in_process(*arguments)
    assert ran.code == 2
    assert ran.err.strip().endswith("xxx...: the file name is too long [usage]")
