"""A child that tries a model has what the model needs, and not what a hostile one asks for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgekit_runtime.system.children import MEMORY_BYTES, PER_MODEL_BYTE, allowed_bytes, crash_signal, environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts mappings on Linux alone")
GIB = 1 << 30


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    program = f"from edgekit_runtime.system.children import limit_this_process\n{program}"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment(), check=False)


@pytest.mark.parametrize(
    ("model", "machine", "allowed"),
    [
        (0, None, MEMORY_BYTES),
        (4_000_000, None, MEMORY_BYTES + 4_000_000 * PER_MODEL_BYTE),
        (4_000_000, GIB // 2, GIB // 2),
        (4_000_000, 64 * GIB, MEMORY_BYTES + 4_000_000 * PER_MODEL_BYTE),
    ],
)
def test_a_child_gets_what_its_file_needs_and_no_more_than_the_machine_has(model, machine, allowed):
    assert allowed_bytes(model, machine) == allowed


def test_four_gibibytes_are_refused_by_the_allocator_and_a_hundred_megabytes_are_not():
    done = run(
        "import numpy as np\nlimit_this_process(1000)\nnp.empty(100_000_000, np.uint8)[:] = 1\ntry:\n    np.empty(4 "
        "<< 30, np.uint8)\nexcept MemoryError:\n    print('refused')\n"
    )
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


def test_what_the_process_has_already_does_not_count():
    done = run(
        "import numpy as np\nheld = np.empty(3 << 30, np.uint8)\n"  # never written to: it takes no memory
        "limit_this_process(1000)\nmore = np.empty(1 << 30, np.uint8)\nprint((len(held) + len(more)) >> 30)\n"
    )
    assert done.stdout == "4\n", done.stderr


def test_no_core_is_dumped_and_processor_time_ends():
    done = run(
        "import resource\nlimit_this_process(1000, threads=2)\nprint(resource.getrlimit(resource.RLIMIT_CORE)[0], "
        "resource.getrlimit(resource.RLIMIT_CPU)[0])\n"
    )
    assert done.stdout == "0 3600\n", done.stderr


def test_a_stricter_limit_of_the_system_stays():
    done = run(
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (50, 50))\nlimit_this_process(1000)\n"
        "print(resource.getrlimit(resource.RLIMIT_CPU))\n"
    )
    assert done.stdout == "(50, 50)\n", done.stderr


def test_a_child_whose_time_is_over_ended_by_its_own_fault():
    done = run("import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 5))\nwhile True: pass")
    assert crash_signal(done.returncode) == "SIGXCPU"


COMPUTED = """
import sys
from pathlib import Path
import numpy as np
from edgekit_runtime.engines.registry import load_engine
from edgekit_runtime.system.errors import EngineError
data = Path(sys.argv[1]).read_bytes()
limit_this_process(len(data))
try:
    with load_engine("onnx", data) as engine:
        engine.run([np.zeros((1, 4), np.float32)])
except EngineError:
    from edgekit_runtime.system.board import peak_mb
    print(round(peak_mb()))
"""


def test_a_shape_that_only_a_run_finds_out_takes_an_error_and_not_the_machine(tmp_path):
    """A file of 300 bytes in which nothing declares the 4 GiB that two of its constants multiply to."""
    onnx = pytest.importorskip("onnx", reason="comes with the extra 'dev'")
    pytest.importorskip("onnxruntime", reason="comes with the extra 'onnx'")
    from edgekit_runtime.modelfile.check import check_model

    make = onnx.helper
    nodes = [
        make.make_node("Mul", ["a", "a"], ["n"]),
        make.make_node("ConstantOfShape", ["n"], ["large"]),
        make.make_node("ReduceSum", ["large"], ["s"], keepdims=0),
        make.make_node("Add", ["x", "s"], ["y"]),
    ]
    floats = [make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]) for name in "xy"]
    side = make.make_tensor("a", onnx.TensorProto.INT64, [1], [1 << 15])
    graph = make.make_graph(nodes, "g", floats[:1], floats[1:], [side])
    data = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8).SerializeToString()
    check_model("onnx", data)
    file = tmp_path / "large.onnx"
    file.write_bytes(data)
    done = run(COMPUTED, file)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1e6 < GIB
