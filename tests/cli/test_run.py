"""edgekit run and inspect on the tiny classifier."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import zipfile
from dataclasses import replace

import memory
import numpy as np
import pytest
import tiny
from PIL import Image

from edgekit_runtime import Answer
from edgekit_runtime.contract.spec import (
    Contract,
    DetectionSpec,
    EmbeddingSpec,
    ImageSpec,
    InputContract,
    OutputContract,
)


@pytest.fixture
def bundle(tmp_path):
    Image.fromarray(tiny.RED).save(tmp_path / "red.png")
    np.save(tmp_path / "blue.npy", tiny.BLUE)
    return tiny.bundle(tmp_path)


def test_names_the_classes_for_a_person(edgekit, bundle):
    ran = edgekit("run", bundle, "red.png", "blue.npy", "--top", "1")
    assert ran.code == 0
    assert [line.split()[-1] for line in ran.out.splitlines() if line.startswith("  ")] == ["red", "blue"]


def test_json_holds_every_promised_key(edgekit, bundle):
    (answer,) = edgekit("run", bundle, "red.png", "--json", "--budget-ms", "60000").json["answers"]
    assert answer.keys() >= {"input", "top", "boxes", "outputs", "source", "timings_ms", "met_budget"}
    assert answer["top"][0]["label"] == "red"
    assert answer["outputs"]["probs"]["shape"] == [4]
    assert len(answer["outputs"]["probs"]["values"]) == 4
    assert answer["met_budget"] is True
    assert answer["timings_ms"]["total"] > 0


PICTURE = InputContract("x", (64, 64, 3), "float32", ImageSpec(64, 64, (0.0,) * 3, (1.0,) * 3))
DETECTOR = Contract(
    "detection",
    (PICTURE,),
    (OutputContract("rows", (3, 6), "float32"),),
    ("cat", "dog"),
    detection=DetectionSpec("rows", "box score class", "xyxy", (64, 64)),
)
EMBEDDER = Contract(
    "embedding", (PICTURE,), (OutputContract("v", (3,), "float32"),), embedding=EmbeddingSpec("v", normalize=True)
)


def answered(contract, **outputs):
    return Answer(
        {name: np.array(value, np.float32) for name, value in outputs.items()}, "device", {"total": 3.0}, None, contract
    )


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        (
            answered(DETECTOR, rows=[[8, 4, 24, 20, 0.9, 0], [40, 10, 60, 40, 0.7, 1], [0, 0, 9, 9, 0.01, 1]]),
            ["   90.0 %  cat   8,4 to 24,20 (16 x 16)", "   70.0 %  dog   40,10 to 60,40 (20 x 30)"],
        ),
        (answered(DETECTOR, rows=np.zeros((3, 6))), ["  nothing found"]),
        (answered(EMBEDDER, v=[3.0, 0.0, 4.0]), ["  vector of 3, length 1: 0.6, 0, 0.8"]),
        (answered(replace(DETECTOR, detection=None), rows=[[1.0]]), ["  rows float32[1, 1]: 1"]),
        (answered(replace(EMBEDDER, embedding=None), v=[1.0]), ["  v float32[1]: 1"]),
    ],
    ids=["two things", "nothing", "a vector", "a detector of unknown outputs", "an embedder of unknown outputs"],
)  # fmt: skip
def test_each_task_is_told_in_its_own_words(answer, lines):
    from edgekit.cli.run import answer_lines

    assert answer_lines("x.png", answer, 5) == ["x.png   3.0 ms from the device", *lines]


def test_boxes_and_vectors_are_json_of_their_own():
    from edgekit.cli.run import answer_json

    found = answer_json("x.png", answered(DETECTOR, rows=[[8, 4, 24, 20, 0.5, 1]]), 5)
    assert found["boxes"] == [
        {"label": "dog", "index": 1, "score": 0.5, "left": 8.0, "top": 4.0, "right": 24.0, "bottom": 20.0}
    ]
    assert (found["top"], found["vector"]) == (None, None)
    assert json.loads(json.dumps(found)) == found
    assert answer_json("x.png", answered(EMBEDDER, v=[0.0, 2.0, 0.0]), 5)["vector"] == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("kind", memory.HERE)
def test_the_inputs_of_a_model_that_keeps_a_state_are_its_frames_in_order(edgekit, tmp_path, kind):
    path = memory.bundle(tmp_path, kind)
    for n in range(3):
        np.save(tmp_path / f"{n}.npy", np.ones(3, np.float32))
    answers = edgekit("run", path, "0.npy", "1.npy", "2.npy", "--json").json["answers"]
    values = [answer["outputs"]["y"]["values"] for answer in answers]
    assert values[0] != values[1] != values[2]


def test_one_bad_input_does_not_cost_the_others_their_answers(edgekit, bundle, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"\x89PNG but no more")
    ran = edgekit("run", bundle, "red.png", "bad.png", "absent.png", "blue.npy", "--json")
    assert ran.code == 1
    answers = ran.json["answers"]
    assert [a.get("top", [{"label": None}])[0]["label"] for a in answers] == ["red", None, None, "blue"]
    assert answers[1]["error"]["code"] == "input"
    assert "bad.png" in answers[1]["error"]["where"]
    told = edgekit("run", bundle, "bad.png")
    assert told.err.startswith("error: bad.png: not an image that can be decoded")


def test_a_folder_with_nothing_in_it_costs_the_others_nothing(edgekit, bundle, tmp_path):
    (tmp_path / "empty").mkdir()
    ran = edgekit("run", bundle, "red.png", "empty", "blue.npy", "--json")
    assert ran.code == 1
    first, error, last = ran.json["answers"]
    assert (first["top"][0]["label"], last["top"][0]["label"]) == ("red", "blue")
    assert (error["input"], error["error"]["code"]) == ("empty", "inputs")
    told = edgekit("run", bundle, "empty", "red.png")
    assert "red.png" in told.out
    assert told.err.startswith("error: empty: contains no pictures")


def test_a_text_for_a_model_of_pictures_and_labels_alone_are_refused_in_words(edgekit, bundle, tmp_path):
    np.savez(tmp_path / "labels.npz", y=np.zeros((2, 8, 8, 3), np.float32))
    ran = edgekit("run", bundle, "labels.npz", "--text", "hello")
    assert ran.code == 1
    assert "labels.npz: holds labels alone (y). Give it an array 'image' [inputs]" in ran.err
    assert "hello: the model does not take text. Pass a file instead of --text [inputs]" in ran.err


def test_an_array_that_does_not_fit_is_named(edgekit, bundle, tmp_path):
    np.save(tmp_path / "flat.npy", np.zeros((3, 3), np.float32))
    assert edgekit("run", bundle, "flat.npy").err.startswith("error: flat.npy: input 'image': a float32 array of shape")


@pytest.mark.skipif(os.name != "posix", reason="names of bytes")
@pytest.mark.parametrize("json_", [(), ("--json",)], ids=["text", "json"])
def test_a_name_that_is_not_utf_8_is_printed_escaped(bundle, tmp_path, json_):
    name = os.fsdecode(b"caf\xe9.png")
    (tmp_path / "red.png").rename(tmp_path / name)
    ran = subprocess.run(
        [sys.executable, "-c", "from edgekit.cli import main; main()", "run", bundle, name, "gone-" + name, *json_],
        cwd=tmp_path, capture_output=True, timeout=60, env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"},
    )  # fmt: skip
    assert ran.returncode == 1
    assert b"caf\\udce9.png" in ran.stdout
    assert b"Traceback" not in ran.stderr


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
def test_what_was_answered_before_ctrl_c_is_printed(bundle, tmp_path):
    code = """
        import os, signal, sys
        import edgekit.bench.inputs
        real = edgekit.bench.inputs.list_files
        def listed(given):
            for number, one in enumerate(real(given)):
                if number == 2:
                    os.kill(os.getpid(), signal.SIGINT)
                yield one
        edgekit.bench.inputs.list_files = listed
        from edgekit.cli import main
        main()
    """
    command = [sys.executable, "-c", textwrap.dedent(code), "run", bundle, *["red.png"] * 4]
    for arguments in (("--json",), ()):
        ran = subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 128 + signal.SIGINT
        assert "Traceback" not in ran.stderr
        if arguments:
            found = json.loads(ran.stdout)
            assert found["interrupted"] is True
            assert [answer["top"][0]["label"] for answer in found["answers"]] == ["red", "red"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "Name INPUTS"),
        (("red.png", ""), "INPUTS is empty"),
        (("red.png", "--device", "porch-1"), "go with --telemetry"),
        (("red.png", "--window-s", "5"), "go with --telemetry"),
    ],
)
def test_what_would_do_nothing_is_a_usage_error(edgekit, bundle, arguments, told):
    ran = edgekit("run", bundle, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY garbage", b"PK\x03\x04"], ids=["empty", "header", "zip"])
def test_a_broken_array_file_is_a_clear_error(edgekit, bundle, tmp_path, data):
    (tmp_path / "x.npy").write_bytes(data)
    ran = edgekit("run", bundle, "x.npy")
    assert ran.code == 1
    assert "x.npy" in ran.err


def test_pickles_are_never_loaded(edgekit, bundle, tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object))
    assert "x.npy: cannot be read" in edgekit("run", bundle, "x.npy").err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="FIFOs are POSIX")
@pytest.mark.parametrize("name", ["pipe.npy", "pipe.npz", "pipe.png", "zero.npy", "zero.png", "socket.npy"])
def test_only_regular_files_are_read(edgekit, bundle, tmp_path, name):
    kind, made = name.split(".")[0], tmp_path / name
    if kind == "pipe":
        os.mkfifo(made)
    elif kind == "zero":
        made.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(os.path.relpath(made))
    ran = edgekit("run", bundle, name)
    assert ran.code == 1
    assert ran.err.startswith(f"error: {name}: not a regular file")
    assert len(ran.err.splitlines()) == 1


def array_header(*shape: int) -> bytes:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return head.getvalue()


def test_a_header_that_promises_more_than_its_file_holds_is_one_line(edgekit, bundle, tmp_path):
    (tmp_path / "lie.npy").write_bytes(array_header(1 << 40, 8, 8, 3) + b"0" * 1000)
    ran = edgekit("run", bundle, "lie.npy")
    assert ran.err.startswith("error: lie.npy: cannot be read: its header promises 844.4 TB, and there are 1.1 kB")
    assert len(ran.err.splitlines()) == 1


def test_a_bomb_is_refused_by_what_it_declares(edgekit, bundle, tmp_path):
    packed = zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with packed as archive, archive.open("x.npy", "w") as member:
        member.write(array_header(700_000, 8, 8, 3))
        for _ in range(70):
            member.write(bytes(10_000 * 8 * 8 * 3 * 4))
    ran = edgekit("run", bundle, "bomb.npz")
    assert ran.err.startswith(
        "error: bomb.npz: holds an array of shape [700000, 8, 8, 3], 537.6 MB, and the model takes one item: image "
        "[8, 8, 3]"
    )


def test_inspect_shows_what_is_inside(edgekit, bundle):
    out = edgekit("inspect", bundle).out
    for part in ("tiny version 1", "tflite-int8", "int8 [1 x 8 x 8 x 3]", "2 examples", "signed     no"):
        assert part in out
    found = edgekit("inspect", bundle, "--json").json
    assert found["manifest"]["artifacts"][0]["recipe"] == "tflite-int8"
    assert (found["signed_by"], found["trusted"]) == ([], False)


def test_a_flipped_bit_is_refused_by_every_command(edgekit, bundle):
    data = bytearray(bundle.read_bytes())
    data[len(data) // 2] ^= 1
    bundle.write_bytes(bytes(data))
    for command in (["inspect", bundle], ["run", bundle, "red.png"], ["bench", bundle]):
        ran = edgekit(*command, "--json")
        assert ran.code == 1
        assert ran.json["error"]["code"] == "bundle-integrity"


def test_a_run_can_report_to_a_fleet(edgekit, tmp_path):
    """One process, one answer: the window is spooled before it ends, and sent where there is somebody."""
    import numpy as np
    from listener import Listener
    from mosquitto import Mosquitto

    np.save(tmp_path / "red.npy", tiny.RED)
    bundle = tiny.bundle(tmp_path)
    with Mosquitto(tmp_path) as broker:
        broker.need_mqtt5()  # a broker that knows 3.1.1 alone takes 3 s to show it, and the process waits 2 s
        listener = Listener(broker.port, acknowledge=True)
        ran = edgekit("run", bundle, "red.npy", "--telemetry", broker.url, "--device", "asked-once", "--window-s", "5")
        assert ran.code == 0, ran.err
        listener.wait(lambda heard: sum(w["n"] for w in heard.windows()) == 1)
        listener.wait(lambda heard: heard.states()[-1]["on"] == 0)
        listener.close()


def test_a_run_without_a_device_id_is_one_sentence(edgekit, tmp_path):
    ran = edgekit("run", tiny.bundle(tmp_path), "red.npy", "--telemetry", "mqtt://127.0.0.1")
    assert (ran.code, ran.out) == (1, "")
    assert "telemetry needs a device id" in ran.err
    assert "--device porch-1" in ran.err
    assert "device=" not in ran.err


def test_a_run_whose_report_does_not_arrive_says_so_and_answers(edgekit, tmp_path):
    np.save(tmp_path / "red.npy", tiny.RED)
    ran = edgekit("run", tiny.bundle(tmp_path), "red.npy", "--telemetry", "mqtt://127.0.0.1:1", "--device", "porch-9")
    assert ran.code == 0
    assert "red" in ran.out
    said = "telemetry: unreachable; 1 window(s) wait in the spool (Check the broker's address, and that it runs)"
    assert ran.err.splitlines()[0] == said


def test_the_last_line_counts_what_got_no_answer(edgekit, bundle):
    ran = edgekit("run", bundle, "red.png", "gone.png", "blue.npy", "--top", "2000")
    assert ran.code == 1
    assert ran.err.splitlines()[-1] == "1 of 3 inputs got no answer"
    assert "got no answer" not in edgekit("run", bundle, "gone.png").err


def test_an_answer_by_an_alternate_says_so_and_how_to_pin_the_primary(edgekit, tmp_path, monkeypatch):
    from edgekit.packaging.assemble import BundleArtifact
    from edgekit_runtime.engines.registry import available

    if not {"litert", "onnxruntime"} <= set(available()):
        pytest.skip("it takes LiteRT and ONNX Runtime")
    monkeypatch.setenv("EDGEKIT_TUNE", "off")
    both = tiny.bundle(tmp_path, alternates=[BundleArtifact(tiny.artifact("onnx-f32"))])
    np.save(tmp_path / "red.npy", tiny.RED)
    aside = edgekit("run", both, "red.npy", "--engine", "onnxruntime")
    assert f": onnx-f32 on onnxruntime {available()['onnxruntime']}" in aside.out
    assert "note: onnx-f32 on onnxruntime" in aside.err
    assert "--pin primary" in aside.err
    pinned = edgekit("run", both, "red.npy", "--pin", "primary")
    assert "alternate" not in pinned.err
    assert "--pin" not in pinned.err
    (answer,) = edgekit("run", both, "red.npy", "--pin", "primary", "--json").json["answers"]
    assert (answer["artifact"], answer["engine"]) == ("tflite-int8", f"litert {available()['litert']}")
