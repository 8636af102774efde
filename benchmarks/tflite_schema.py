"""Write runtime/edgekit_runtime/modelfile/tflite_schema.py: the tables of a .tflite file, as ai-edge-litert knows them.

    .venv/bin/python benchmarks/tflite_schema.py            # writes it
    .venv/bin/python benchmarks/tflite_schema.py --check    # exits 1 where it is not what is installed would give

ai-edge-litert carries the accessors that the FlatBuffers compiler made of TFLite's schema; which slot of which table
holds what is read from them. A board needs no more than that list, and has no ai-edge-litert where it runs
tflite-runtime.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

TARGET = Path(__file__).parents[1] / "runtime" / "edgekit_runtime" / "modelfile" / "tflite_schema.py"
ENUMS = ("TensorType", "BuiltinOperator")
UNIONS = ("BuiltinOptions", "BuiltinOptions2", "QuantizationDetails", "SparseIndexVector")
_UNION_FIELDS = {
    "Details": "QuantizationDetails",
    "ArraySegments": "SparseIndexVector",
    "ArrayIndices": "SparseIndexVector",
}
_SIZES = {"Bool": "u8", "Int8": "i8", "Uint8": "u8", "Int16": "i16", "Uint16": "u16", "Int32": "i32", "Uint32": "u32"}
_SIZES |= {"Int64": "i64", "Uint64": "u64", "Float32": "f32", "Float64": "f64"}


def classes(source: str) -> dict[str, str]:
    parts = re.split(r"^class (\w+)\(object\):\n", source, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def constants(body: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"^    (\w+) = (\d+)$", body, flags=re.MULTILINE)}


def kind(name: str, body: str) -> str | None:
    """What an accessor reads; None for the helpers beside it (Length, AsNumpy, IsNone)."""
    scalar = re.search(r"number_types\.(\w+)Flags, o \+ self\._tab\.Pos", body)
    element = re.search(r"number_types\.(\w+)Flags, a \+ ", body)
    table = re.search(r"obj = (\w+)\(\)\n", body)
    if "self._tab.Union(" in body:
        return f"<{_UNION_FIELDS.get(name, name)}>"
    if scalar:
        return _SIZES[scalar[1]]
    if element:
        return f"[{_SIZES[element[1]]}]"
    if "self._tab.String(a" in body:
        return "[str]"
    if "self._tab.String(o" in body:
        return "str"
    if table:
        return f"[{table[1]}]" if "self._tab.Vector(o)" in body else table[1]
    return None


def fields(name: str, body: str) -> str:
    """`name:kind name:kind`, in the order of the slots; - for a slot that is no longer read."""
    slots: dict[int, str] = {}
    for method, text in re.findall(
        rf"    # {name}\n    def (\w+)\(self.*?\n(.*?)(?=\n    # |\Z)", body, flags=re.DOTALL
    ):
        slot = re.search(r"_tab\.Offset\((\d+)\)", text)
        what = kind(method, text.split("\ndef ")[0]) if slot and not method.endswith("AsNumpy") else None
        if slot and what:
            slots[int(slot[1]) // 2 - 2] = f"{method}:{what}"
    return " ".join(slots.get(place, "-") for place in range(max(slots, default=-1) + 1))


def written(source: str) -> str:
    found = classes(source)
    tables: dict[str, str] = {}
    waiting = ["Model"]
    while waiting:
        name = waiting.pop()
        if name in tables:
            continue
        tables[name] = fields(name, found[name])
        for what in re.findall(r":[\[<]?(\w+)", tables[name]):
            waiting += [union for union in constants(found[what]) if union in found] if what in UNIONS else []
            waiting += [what] if what in found and what not in UNIONS else []
    lines = [
        '"""Which slot of which table of a .tflite file holds what.',
        "",
        "Written by benchmarks/tflite_schema.py, never by hand.",
        f"From ai-edge-litert {version('ai-edge-litert')}. TABLES: `name:kind` by slot. A kind is a scalar (u8, i32, "
        f"f32, ...), `str`, a table, a",
        "`[vector]` of one of them, or a `<union>`, whose type stands in the slot before.",
        '"""',
        "",
        "# ruff: noqa: SIM905 - 200 names in a list of strings would be 200 lines",
        "",
        "from __future__ import annotations",
        "",
    ]
    for enum in ENUMS:
        names = {value: name for name, value in constants(found[enum]).items()}
        lines += _words(ENUMS_AS[enum], [names.get(n, "-") for n in range(max(names) + 1)])
    lines.append("# Member of a union -> its table.")
    for union in UNIONS:
        names = {value: name for name, value in constants(found[union]).items()}
        lines += _words(UNIONS_AS[union], [names.get(n, "-") for n in range(max(names) + 1)])
    rows = "; ".join(f"{name} {tables[name]}".rstrip() for name in sorted(tables)).split(" ")
    lines += [
        *_words("_TABLES", rows, ""),
        "TABLES = {name: fields for name, _, fields in (table.partition(' ') for table in _TABLES.split('; '))}",
    ]
    return subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=True,
    ).stdout


ENUMS_AS = {"TensorType": "TENSOR_TYPES", "BuiltinOperator": "OPERATORS"}
UNIONS_AS = {union: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", union).upper() for union in UNIONS}


def _words(name: str, words: list[str], split: str = ".split()") -> list[str]:
    rows, row = [], ""
    for word in words:
        if len(row) + len(word) > 112:
            rows, row = [*rows, row], ""
        row += f"{word} "
    rows.append(row)
    if len(rows) == 1:
        return [f'{name} = "{row.rstrip()}"{split}']
    return [f"{name} = (", *[f'    "{row}"' for row in rows[:-1]], f'    "{rows[-1].rstrip()}"', f"){split}"]


def main() -> int:
    spec = find_spec("ai_edge_litert")
    assert spec is not None
    assert spec.origin is not None
    text = written((Path(spec.origin).parent / "schema_py_generated.py").read_text(encoding="utf-8"))
    if "--check" in sys.argv[1:]:
        return int(text != TARGET.read_text(encoding="utf-8"))
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
