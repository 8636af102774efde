"""Ask runtimes what their registration knows, and write it down for the rules that `edgekit check` and the build go by.

    python benchmarks/registered.py                     # asks the versions in the file, prints what changed
    python benchmarks/registered.py litert==2.4.0       # and this one
    python benchmarks/registered.py --prove             # holds the kernels' table against ONNX's own examples
    python benchmarks/registered.py --write             # writes converters/edgekit_converters/formats/registered.toml

Each version is installed beside this environment, as `edgekit check` does it. A .tflite file that names one operator in
one version, and has none in its graph, is opened: the runtime takes it, or says "Didn't find op for builtin opcode".
ONNX Runtime opens a Relu in every IR version and opset, and a pair of QuantizeLinear and DequantizeLinear in every
opset. Its CPU kernels, operators with the versions and element types that each takes, come from its own registry (since
1.16) into onnx_kernels.json.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from edgekit.boards.replay import environment
from edgekit_converters.formats import tflite_edit as tfl
from edgekit_converters.formats.needs import kernel_versions, known_custom, known_versions
from edgekit_profiles.wheels import version_parts

FILE = Path(__file__).parents[1] / "converters" / "edgekit_converters" / "formats" / "registered.toml"
KERNELS = FILE.with_name("onnx_kernels.json")
VERSIONS = 20
MAX_END = 2**31 - 1
HEAD = """\
# What each runtime's registration knows, found by asking it: a file that names nothing but one operator in one \
version is
# opened, and the runtime either takes it or says "Didn't find op for builtin opcode". ONNX Runtime: \
one Relu, and one pair of
# QuantizeLinear and DequantizeLinear, in every IR version and opset. Asked on x86-64 \
with CPython 3.11 in November 2026;
# written by benchmarks/registered.py, which asks again. 0: there is no such operator.
# custom: operators that are no built-in ones and that every version registers all the same.
"""

CHILD_TFLITE = """
import base64, json, sys
try:
    from ai_edge_litert.interpreter import Interpreter
except ImportError:
    from tflite_runtime.interpreter import Interpreter
known = {}
for name, files in json.load(open(sys.argv[1])).items():
    for version, file in enumerate(files, start=1):
        try:
            Interpreter(model_content=base64.b64decode(file))
        except (ValueError, RuntimeError) as error:
            assert "Didn't find op" in str(error) or "out of range" in str(error), (name, version, error)
        else:
            known[name] = version
print(json.dumps(known))
"""

CHILD_ONNX = """
import base64, json, sys
import onnxruntime
onnxruntime.set_default_logger_severity(4)
most = {}
for kind, files in json.load(open(sys.argv[1])).items():
    for version, file in files.items():
        try:
            onnxruntime.InferenceSession(base64.b64decode(file), providers=["CPUExecutionProvider"])
        except Exception:
            continue
        most[kind] = max(int(version), most.get(kind, 0))
print(json.dumps(most))
"""

CHILD_KERNELS = """
import json
from onnxruntime.capi import onnxruntime_pybind11_state as state
rows = []
for one in getattr(state, "get_all_opkernel_def", list)():
    if one.provider == "CPUExecutionProvider":
        types = {name: sorted(kinds) for name, kinds in one.type_constraints.items()}
        rows.append([one.domain, one.op_name, *one.version_range, types])
print(json.dumps(rows))
"""


def tflite_file(number: int, version: int) -> bytes:
    schema = tfl.schema()
    model, graph, tensor, code = schema.ModelT(), schema.SubGraphT(), schema.TensorT(), schema.OperatorCodeT()
    tensor.shape, tensor.type, tensor.name = [1], schema.TensorType.FLOAT32, b"x"
    code.builtinCode, code.version = number, version
    code.deprecatedBuiltinCode = min(number, schema.BuiltinOperator.PLACEHOLDER_FOR_GREATER_OP_CODES)
    graph.tensors, graph.inputs, graph.outputs, graph.operators = [tensor], [0], [0], []
    model.version, model.subgraphs, model.buffers, model.operatorCodes = 3, [graph], [schema.BufferT()], [code]
    return tfl.write(model)


def onnx_file(ir: int, opset: int, *, quantized: bool = False) -> bytes:
    from onnx import TensorProto, helper

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    constants = []
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    if quantized:
        scale = helper.make_tensor("s", TensorProto.FLOAT, [], [0.1])
        constants = [scale, helper.make_tensor("z", TensorProto.INT8, [], [0])]
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        ]
    graph = helper.make_graph(nodes, "asked", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = ir
    return bytes(model.SerializeToString())


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def questions(engine: str) -> dict[str, Any]:
    if engine == "onnxruntime":
        return {
            "ir": {ir: encoded(onnx_file(ir, 11)) for ir in range(6, 20)},
            "opset": {opset: encoded(onnx_file(8, opset)) for opset in range(9, 35)},
            "quantize": {opset: encoded(onnx_file(8, opset, quantized=True)) for opset in range(10, 35)},
        }
    operators = {name: value for name, value in vars(tfl.schema().BuiltinOperator).items() if isinstance(value, int)}
    return {
        name: [encoded(tflite_file(number, version)) for version in range(1, VERSIONS + 1)]
        for name, number in operators.items()
        if name not in ("CUSTOM", "DELEGATE", "PLACEHOLDER_FOR_GREATER_OP_CODES")
    }


def asked(engine: str, version: str) -> dict[str, int]:
    """Operator -> its highest version; of ONNX Runtime `ir`, `opset` and `quantize`."""
    child = CHILD_ONNX if engine == "onnxruntime" else CHILD_TFLITE
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "questions.json"
        file.write_text(json.dumps(questions(engine)))
        command = [str(environment(engine, version)), "-P", "-c", child, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        sys.exit(f"{engine} {version}: {done.stderr[-500:]}")
    found: dict[str, int] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


CHILD_LOADS = """
import base64, json, sys
import onnxruntime
onnxruntime.set_default_logger_severity(4)
loads = []
for file in json.load(open(sys.argv[1])):
    try:
        onnxruntime.InferenceSession(base64.b64decode(file), providers=["CPUExecutionProvider"])
    except Exception:
        loads.append(False)
    else:
        loads.append(True)
print(json.dumps(loads))
"""


def prove(versions: tuple[str, ...]) -> None:
    """Print for each version how many of ONNX's examples load, and what `edgekit check` says of them without running
    any.
    """
    from onnx.backend.test.case.node import collect_testcases

    from edgekit_converters.formats.needs import Runtime, barriers, read_needs

    files = [case.model.SerializeToString() for case in collect_testcases(None) if case.model is not None]
    needs = [read_needs("onnx", file) for file in files]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "files.json"
        file.write_text(json.dumps([encoded(one) for one in files]))
        for version in versions:
            command = [str(environment("onnxruntime", version)), "-P", "-c", CHILD_LOADS, str(file)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
            loads = json.loads(done.stdout.strip().splitlines()[-1])
            runtime = Runtime("onnxruntime", version)
            stopped = [any(one.code != "empty-tensor" for one in barriers(need, runtime)) for need in needs]
            wrong = sum(load and stop for load, stop in zip(loads, stopped, strict=True))
            caught = sum(not load and stop for load, stop in zip(loads, stopped, strict=True))
            print(
                f"{version}: {sum(loads)} load, {wrong} of them are called errors; {caught} of {loads.count(False)} "
                f"refused are caught"
            )


Row = tuple[int, int, tuple[tuple[str, str], ...]]
"""First and last operator version, and for each type parameter the element types, separated by blanks."""


def kernels_of(version: str) -> dict[str, set[Row]]:
    """Operator -> rows of the CPU provider; empty for a version that does not tell."""
    command = [str(environment("onnxruntime", version)), "-P", "-c", CHILD_KERNELS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    found: dict[tuple[str, int, int], list[dict[str, frozenset[str]]]] = {}
    for domain, op, start, end, types in json.loads(done.stdout.strip().splitlines()[-1]):
        sets = {name: frozenset(map(short, kinds)) for name, kinds in types.items()}
        found.setdefault((f"{domain}:{op}" if domain else op, start, min(end, MAX_END)), []).append(sets)
    rows: dict[str, set[Row]] = {}
    for (op, start, end), several in found.items():
        for types in joined(several):
            line = tuple(sorted((name, " ".join(sorted(kinds))) for name, kinds in types.items()))
            rows.setdefault(op, set()).add((start, end, line))
    return rows


def short(kind: str) -> str:
    """`tensor(float)` -> `float`; sequences and maps stay as they are."""
    return kind[len("tensor(") : -1] if kind.startswith("tensor(") else kind


def joined(several: list[dict[str, frozenset[str]]]) -> list[dict[str, frozenset[str]]]:
    """Rows that differ in the types of one parameter alone are one row."""
    rows = list(several)
    for place, row in enumerate(rows):
        for other in rows[place + 1 :]:
            apart = [name for name in row.keys() | other.keys() if row.get(name) != other.get(name)]
            if len(apart) <= 1 and row.keys() == other.keys():
                both = row | {name: row[name] | other[name] for name in apart}
                return joined([one for one in rows if one is not row and one is not other] + [both])
    return rows


def kernels_text(versions: dict[str, dict[str, set[Row]]]) -> str:
    """One line an operator; a row ends with the first and the last of `versions` that have it."""
    names = list(versions)
    lines = []
    for op in sorted(set().union(*versions.values())):
        rows = []
        for row in sorted(set().union(*(found.get(op, set()) for found in versions.values()))):
            places = [place for place, found in enumerate(versions.values()) if row in found.get(op, set())]
            for first in [place for place in places if place - 1 not in places]:
                last = next(place for place in range(first, len(names)) if place + 1 not in places)
                rows.append([row[0], row[1], dict(row[2]), first, last])
        lines.append(f"{json.dumps(op)}: {json.dumps(rows, separators=(',', ':'))}")
    body = ",\n".join(lines)
    return f'{{"versions": {json.dumps(names)},\n"kernels": {{\n{body}\n}}}}\n'


def text(tflite: dict[tuple[str, str], dict[str, int]], onnx: dict[str, dict[str, int]]) -> str:
    names = sorted(set().union(*tflite.values()))
    lines = [HEAD, "[tflite]", f"asked = [{', '.join(json.dumps(list(runtime)) for runtime in tflite)}]"]
    lines += [f"custom = {json.dumps(sorted(known_custom()))}", "", "[tflite.operators]"]
    lines += [f"{name} = {[found.get(name, 0) for found in tflite.values()]}" for name in names]
    for version, most in onnx.items():
        lines += ["", "[[onnx]]", f'version = "{version}"', *(f"{key} = {value}" for key, value in most.items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("more", nargs="*", metavar="ENGINE==VERSION")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--prove", action="store_true")
    options = parser.parse_args()
    if options.prove:
        prove(kernel_versions())
        return
    wanted = [(engine, v) for engine in ("tflite-runtime", "litert", "onnxruntime") for v in known_versions(engine)]
    wanted += [(one.partition("==")[0], one.partition("==")[2]) for one in options.more]
    order = {"tflite-runtime": 0, "litert": 1, "onnxruntime": 2}
    found = {}
    for engine, version in sorted(set(wanted), key=lambda pair: (order[pair[0]], version_parts(pair[1]))):
        found[engine, version] = asked(engine, version)
        print(f"{engine} {version}: {len(found[engine, version])} answers", file=sys.stderr)
    made = text(
        {runtime: most for runtime, most in found.items() if runtime[0] != "onnxruntime"},
        {version: most for (engine, version), most in found.items() if engine == "onnxruntime"},
    )
    before = set(FILE.read_text().splitlines())
    print("\n".join(line for line in made.splitlines() if line not in before) or "nothing changed")
    if options.write:
        FILE.write_text(made)
        told = {version: kernels_of(version) for engine, version in found if engine == "onnxruntime"}
        KERNELS.write_text(kernels_text({version: rows for version, rows in told.items() if rows}))


if __name__ == "__main__":
    main()
