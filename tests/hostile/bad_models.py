"""Model files that must not reach an engine: of groups 16 to 19."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from hostile import forge
from hostile import onnx_by_hand as onnx
from hostile.tflite_by_hand import Tflite


@dataclass(frozen=True)
class BadModel:
    group: int
    name: str
    format: str
    make: Callable[[], bytes]
    says: str = ""


_X, _Y = onnx.value("x", [1, 4]), onnx.value("y", [1, 4])


def _adding(one: bytes, **options: object) -> bytes:
    """y = x + w, where w is `one`."""
    return onnx.model(onnx.node("Add", ["x", "w"], ["y"]), inputs=[_X], outputs=[_Y], tensors=[one], **options)  # type: ignore[arg-type]


def _external(**entries: str) -> Callable[[], bytes]:
    return lambda: _adding(onnx.tensor("w", [1, 4], external=entries))


def _external_data() -> Iterator[BadModel]:
    says = "are stored elsewhere|are said to be in another file"
    places = {
        "climbing": {"location": "../../etc/passwd"},
        "absolute": {"location": "/etc/passwd"},
        "through-a-link": {"location": "link/w.bin", "offset": "0", "length": "16"},
        "of-a-huge-length": {"location": "w.bin", "length": str(2**62)},
        "with-an-unknown-key": {"location": "w.bin", "__class__": "os.system"},
        "at-an-address-in-memory": {"location": "*/_ORT_MEM_ADDR_/*", "offset": "94245234", "length": "16"},
        "without-entries": {},
    }
    for name, entries in places.items():
        yield BadModel(16, f"onnx-external-data-{name}", "onnx", _external(**entries), says)
    outside = onnx.tensor("w", [1, 4], external={"location": "/etc/passwd"})
    constant = onnx.node("Constant", [], ["w"], onnx.attribute_tensor("value", outside))
    add = onnx.node("Add", ["x", "w"], ["y"])
    yield BadModel(
        16,
        "onnx-external-data-in-an-attribute",
        "onnx",
        lambda: onnx.model(constant, add, inputs=[_X], outputs=[_Y]),
        says,
    )
    inner = onnx.graph([onnx.node("Identity", ["w"], ["v"])], [], [onnx.value("v", [1, 4])], [outside])
    branch = onnx.node(
        "If", ["c"], ["y"], onnx.attribute_graph("then_branch", inner), onnx.attribute_graph("else_branch", inner)
    )
    yield BadModel(
        16, "onnx-external-data-in-a-branch", "onnx",
        lambda: onnx.model(branch, inputs=[onnx.value("c", [], onnx.BOOL)], outputs=[_Y]), says,
    )  # fmt: skip


def _custom() -> Iterator[BadModel]:
    own = onnx.node("Own", ["x"], ["y"], domain="com.example")
    yield BadModel(
        17,
        "onnx-custom-domain",
        "onnx",
        lambda: onnx.model(own, inputs=[_X], outputs=[_Y], domains=("", "com.example")),
        "com.example",
    )
    runs = onnx.node("PyOp", ["x"], ["y"], domain="ai.onnx.contrib")
    yield BadModel(
        17,
        "onnx-operator-that-runs-python",
        "onnx",
        lambda: onnx.model(runs, inputs=[_X], outputs=[_Y], domains=("", "ai.onnx.contrib")),
        "ai.onnx.contrib",
    )
    yield BadModel(17, "tflite-custom-operator", "tflite", _custom_tflite, "CUSTOM|custom")
    yield BadModel(17, "tflite-operator-of-no-number", "tflite", lambda: _code(250), "operator|code")


def _custom_tflite() -> bytes:
    return _code(32)


def _code(number: int) -> bytes:
    """The first operator's code, in both of its fields."""
    file = _tiny()
    code = file.codes()[0]
    file.put("<b", file.field(code, 0), min(number, 127))
    return file.put("<i", file.field(code, 3), number).bytes()


def _tiny() -> Tflite:
    return Tflite(forge.model())


@cache
def _structures() -> dict[str, Callable[[], bytes]]:
    def shaped(side: int, name: str = "image", at: int = 1) -> Callable[[], bytes]:
        return lambda: _put("<i", lambda file: file.shape_at(name) + 4 * at, side)

    def placed(form: str, where: Callable[[Tflite], int], value: int) -> Callable[[], bytes]:
        return lambda: _put(form, where, value)

    return {
        "zero-side-of-an-input": shaped(0),
        "zero-side-of-a-filter": shaped(0, "Conv2D1", 1),
        "negative-side": shaped(-1, "Relu;Conv2D", 1),
        "tensor-index-out-of-range": placed("<i", lambda f: f.vector(f.operators()[0], 1) + 4, 4711),
        "tensor-index-negative": placed("<i", lambda f: f.vector(f.operators()[0], 2) + 4, -7),
        "output-index-out-of-range": placed("<i", lambda f: f.vector(f.subgraph(), 2) + 4, 10),
        "operator-code-out-of-range": placed("<I", lambda f: f.field(f.operators()[1], 0), 99),
        "buffer-index-out-of-range": placed("<I", lambda f: f.field(f.tensor("Conv2D1"), 2), 13),
        "buffer-shorter-than-its-tensor": placed("<i", lambda f: f.shape_at("Conv2D1"), 100),
        "vector-past-the-end": placed("<I", lambda f: f.vector(f.subgraph(), 0), 2**30),
        "vector-whose-size-wraps": placed("<I", lambda f: f.vector(f.subgraph(), 0), 2**30 + 2**30),
        "offset-past-the-end": placed("<I", lambda f: f.field(f.model(), 2), 2**31),
        "offset-that-wraps": placed("<I", lambda f: f.field(f.model(), 2), 2**32 - 4),
        "root-past-the-end": placed("<I", lambda _: 0, 2**32 - 1),
        "vtable-before-the-file": placed("<i", lambda f: f.model(), 2**30),
        "vtable-of-an-odd-size": placed("<H", lambda f: f.model() - f.get("<i", f.model()), 3),
        "text-past-the-end": placed("<I", lambda f: f.vector(f.tensor("image"), 3), 2**31),
    }


def _put(form: str, where: Callable[[Tflite], int], value: int) -> bytes:
    file = _tiny()
    return file.put(form, where(file), value).bytes()


def _flatbuffers() -> Iterator[BadModel]:
    for name, make in _structures().items():
        yield BadModel(18, f"tflite-{name}", "tflite", make)
    yield BadModel(18, "tflite-cut-in-half", "tflite", lambda: forge.model()[: len(forge.model()) // 2])
    yield BadModel(18, "tflite-without-its-mark", "tflite", lambda: forge.model()[:4] + b"GGUF" + forge.model()[8:])
    yield BadModel(18, "onnx-cut-in-half", "onnx", lambda: _adding(onnx.tensor("w", [1, 4], raw=bytes(16)))[:60])
    yield BadModel(
        18, "onnx-length-past-the-end", "onnx", lambda: onnx.number(1, 8) + b"\x3a" + onnx.varint(2**40) + bytes(8)
    )
    yield BadModel(18, "onnx-number-of-11-bytes", "onnx", lambda: b"\x08" + b"\xff" * 11)
    yield BadModel(
        18, "onnx-data-shorter-than-its-tensor", "onnx", lambda: _adding(onnx.tensor("w", [1, 4], raw=bytes(3)))
    )
    yield BadModel(18, "onnx-negative-side", "onnx", lambda: _adding(onnx.tensor("w", [1, -4], raw=bytes(16))))
    yield BadModel(18, "onnx-graphs-within-graphs", "onnx", _deep)


def _deep() -> bytes:
    """A branch in a branch, 200 times."""
    inner = onnx.graph([onnx.node("Identity", ["x"], ["v"])], [], [_Y])
    for _ in range(200):
        inner = onnx.graph([onnx.node("If", ["c"], ["v"], onnx.attribute_graph("then_branch", inner))], [], [_Y])
    return onnx.model(
        onnx.node("If", ["c"], ["y"], onnx.attribute_graph("then_branch", inner)), inputs=[_X], outputs=[_Y]
    )


def _large() -> Iterator[BadModel]:
    yield BadModel(19, "tflite-tensor-of-4GiB", "tflite", _large_tflite, "declares")
    big = [1, 1 << 15, 1 << 15]
    grown = onnx.value("y", big)
    widened = onnx.node("Expand", ["x", "s"], ["y"])
    to = onnx.tensor("s", [3], onnx.INT64, raw=struct.pack("<3q", *big))
    yield BadModel(
        19,
        "onnx-output-of-4GiB",
        "onnx",
        lambda: onnx.model(widened, inputs=[_X], outputs=[grown], tensors=[to]),
        "declares",
    )
    endless = onnx.tensor("w", [2**31, 2**31])
    yield BadModel(19, "onnx-constant-whose-size-overflows", "onnx", lambda: _adding(endless))


def _large_tflite() -> bytes:
    file = _tiny()
    at = file.shape_at("Relu;Conv2D")
    return file.put("<i", at + 4, 1 << 15).put("<i", at + 8, 1 << 16).bytes()


MODELS: tuple[BadModel, ...] = tuple(
    one for group in (_external_data, _custom, _flatbuffers, _large) for one in group()
)
