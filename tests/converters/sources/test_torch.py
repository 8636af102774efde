"""PyTorch networks: torch's own answers, and an ONNX form that gives the same. Run where the `torch` extra is
installed.
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from damaged import damaged

from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.sources import float_onnx
from edgekit_converters.sources.load import load as load_source
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_converters.sources.source_model import SourceModel
from edgekit_runtime.engines.registry import load_engine

torch = pytest.importorskip("torch", reason="the 'torch' extra is not installed: make test-torch")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.convert

NETS = """
import torch
from torch import nn

class Picture(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 5)
        self.norm.running_mean.uniform_(-1, 1)
        self.drop = nn.Dropout(0.5)
    def forward(self, image):
        return self.head(self.drop(nn.functional.silu(self.norm(self.conv(image)))).mean((2, 3)))

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.dense = nn.Embedding(16, 6), nn.Linear(10, 3)
    def forward(self, ids, sensors):
        t = self.dense(torch.cat([self.words(ids).mean(1), sensors], 1))
        return {"score": t.softmax(1), "size": t.sum(1, keepdim=True)}

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 2)
    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])

class Carried(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell = nn.GRUCell(4, 8)
    def forward(self, x, hidden):
        new = self.cell(x, hidden)
        return {"y": new.sum(1, keepdim=True), "hidden_out": new}

class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
    def forward(self, x):
        self.seen.add_(1)
        return x + self.seen

class Branching(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x

def picture(): return Picture()
def pictures(): return Picture(), torch.zeros(4, 3, 8, 8)
def two(): return Two(), {"ids": torch.zeros(1, 7, dtype=torch.long), "sensors": torch.zeros(1, 4)}
def recurrent(): return Recurrent(), torch.zeros(1, 10, 4)
def carried(): return Carried(), (torch.zeros(1, 4), torch.zeros(1, 8))
def counter(): return Counter(), torch.zeros(1, 4)
def branching(): return Branching(), torch.zeros(1, 4)
def number(): return 3
def failing(): raise RuntimeError("no checkpoint")
def damaged():
    net = Picture()
    net.conv.weight.data[0, 0, 0, 0] = float("nan")
    return net, torch.zeros(1, 3, 8, 8)
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch):
    """The functions above as the module `nets_of_a_person`, in the current folder."""
    (tmp_path / "nets_of_a_person.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "nets_of_a_person", raising=False)

    def load(name: str, **options) -> SourceModel:
        return load_source(f"nets_of_a_person:{name}", LoadOptions(**options))

    yield load
    sys.modules.pop("nets_of_a_person", None)


def agree(source: SourceModel) -> None:
    inputs = float_onnx.random_inputs(source.inputs, 3 if source.inputs[0].free_batch else 1, seed=5)
    with load_engine("onnx", source.onnx()) as engine:
        assert [spec.name for spec in engine.inputs] == [spec.name for spec in source.inputs]
        assert [spec.name for spec in engine.outputs] == [spec.name for spec in source.outputs]
        for got, want in zip(engine.run(inputs), source.predict(inputs), strict=True):
            np.testing.assert_allclose(got, want, atol=1e-4)


def test_a_function_that_returns_a_network_is_a_model(nets) -> None:
    source = nets("picture", shapes={"image": (1, 3, 8, 8)})
    [image], [output] = source.inputs, source.outputs
    assert (image.name, image.shape, image.layout, output.shape) == ("image", (-1, 3, 8, 8), "NCHW", (-1, 5))
    import nets_of_a_person

    x = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
    with torch.no_grad():
        want = nets_of_a_person.Picture().eval()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(source.predict([x])[0], want, atol=1e-6)
    agree(source)
    assert "Dropout" not in str(source.onnx())


def test_examples_may_come_with_the_network_and_the_digest_is_of_what_it_computes(nets) -> None:
    source = nets("pictures")
    assert source.inputs[0].shape == (-1, 3, 8, 8)
    assert source.sha256 == nets("pictures").sha256 == nets("picture", shapes={"image": (1, 3, 8, 8)}).sha256
    assert source.sha256 != nets("recurrent").sha256


def test_several_inputs_and_outputs_are_named_and_integers_stay_integers(nets) -> None:
    source = nets("two")
    assert [(spec.name, spec.dtype) for spec in source.inputs] == [("ids", "int64"), ("sensors", "float32")]
    assert [spec.name for spec in source.outputs] == ["score", "size"]
    agree(source)


def test_a_recurrent_net_is_read(nets) -> None:
    agree(nets("recurrent"))


def test_a_state_that_its_caller_carries_is_named(nets) -> None:
    source = nets("carried")
    assert (source.state, source.state_pairs) == ("explicit", (("hidden", "hidden_out"),))
    agree(source)


@pytest.mark.parametrize(
    ("name", "says", "do"),
    [
        ("picture", "the shape of its input image is not known", "--shape image=1,3,224,224"),
        ("counter", "keeps a state inside: answering writes to its buffer 'seen'", "as an input"),
        ("branching", "cannot trace it", "branches"),
        ("number", "returns a int, not a torch.nn.Module", "Return the network"),
        ("failing", "nets_of_a_person.py, line ", "Mend the function"),
        ("missing", "has no function 'missing'", "colon"),
        ("damaged", "weights 'conv.weight' are damaged: 1 of 216 values are NaN", "checkpoint"),
    ],
)
def test_what_cannot_be_read_says_why(nets, name: str, says: str, do: str) -> None:
    with pytest.raises(SourceError) as caught:
        nets(name)
    assert says in caught.value.what
    assert do in caught.value.do
    assert caught.value.where == f"nets_of_a_person:{name}"


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(SourceError, match="there is no module 'nets_of_nobody'"):
        load_source("nets_of_nobody:make")


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    """A convolution net as .pt2, batch and height free."""
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1)).eval()
    batch, height = torch.export.Dim("batch"), torch.export.Dim("height", min=4, max=64)
    program = torch.export.export(net, (torch.zeros(2, 3, 8, 8),), dynamic_shapes=({0: batch, 2: height},))
    path = tmp_path_factory.mktemp("torch") / "net.pt2"
    torch.export.save(program, path)
    return path


def test_an_exported_program_is_read_and_its_free_axis_is_pinned(exported: Path) -> None:
    with pytest.raises(SourceError, match=r"axis 2 is free.* --shape input=1,3,HEIGHT,8, such as"):
        load_source(exported)
    source = load_source(exported, LoadOptions(shapes={"input": (1, 3, 8, 8)}))
    assert source.format == "torch-export"
    assert source.inputs[0].shape == (-1, 3, 8, 8)
    agree(source)


def forged(exported: Path, path: Path, edit, *more: str) -> None:
    """The archive with its program edited: a function of every text in it and its key. more: empty members besides."""

    def edited(value, key=""):
        if isinstance(value, dict):
            return {name: edited(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [edited(item, key) for item in value] or edit([], key)
        return edit(value, key)

    with zipfile.ZipFile(exported) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, json.dumps(edited(json.loads(data))) if name.endswith("models/model.json") else data)
        for name in more:
            new.writestr(old.namelist()[0].partition("/")[0] + name, b"")


def test_a_pickle_in_an_exported_program_is_not_opened(exported: Path, tmp_path: Path) -> None:
    path, ran = tmp_path / "evil.pt2", tmp_path / "ran"
    code = f"cos\nsystem\n(S'touch {ran}'\ntR.".encode()
    with zipfile.ZipFile(exported) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, code if name.endswith(".pt") else old.read(name))
    with pytest.raises(SourceError, match=r"would run .* the pickle .*--trust-model"):
        load_source(path)
    assert not ran.exists()


RUN = "__import__('pathlib').Path('ran').touch()"
CODE = {
    "expression": lambda value, key: RUN if key == "expr_str" else value,
    "operator": lambda value, key: "torch.hub.os.getcwd" if value == "torch.ops.aten.relu.default" else value,
    "name": lambda value, key: f"input={RUN}" if value == "input" else value,
    "container": lambda value, key: (
        value.replace("builtins.tuple", "collections.defaultdict") if key == "in_spec" else value
    ),
    "enumeration": lambda value, key: (
        value.replace('"null"', json.dumps('{"__enum__": true, "fqn": "os:A", "name": "A"}'))
        if key == "in_spec"
        else value
    ),
}


@pytest.mark.parametrize("place", CODE)
def test_code_in_an_exported_program_is_refused_before_torch_opens_it(
    exported: Path, tmp_path: Path, monkeypatch, place: str
) -> None:
    """S24: each would be run by torch.export.load."""
    monkeypatch.chdir(tmp_path)
    forged(exported, tmp_path / "evil.pt2", CODE[place])
    with pytest.raises(SourceError, match=r"would run on opening it.*--trust-model"):
        load_source("evil.pt2", LoadOptions(shapes={"input": (1, 3, 8, 8)}))
    assert not (tmp_path / "ran").exists()


def test_a_compiled_library_in_an_exported_program_is_refused(exported: Path, tmp_path: Path) -> None:
    forged(exported, tmp_path / "evil.pt2", lambda value, key: value, "/data/aotinductor/model/model.so")
    with pytest.raises(SourceError, match=r"the library 'model\.so'"):
        load_source(tmp_path / "evil.pt2")


def test_guards_are_left_out_of_what_torch_is_given(exported: Path, tmp_path: Path, monkeypatch) -> None:
    """torch makes a function of them and runs it with the network."""
    monkeypatch.chdir(tmp_path)
    forged(exported, tmp_path / "evil.pt2", lambda value, key: [RUN] if key == "guards_code" else value)
    agree(load_source("evil.pt2", LoadOptions(shapes={"input": (1, 3, 8, 8)})))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"this is a shopping list", b"PK\x03\x04 and no more"])
def test_what_is_no_exported_program_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "net.pt2").write_bytes(content)
    with pytest.raises(SourceError, match=r"not a torch\.export file"):
        load_source(tmp_path / "net.pt2")


def test_half_an_exported_program_is_refused(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "net.pt2").write_bytes(exported.read_bytes()[:4000])
    with pytest.raises(SourceError, match=r"not a torch\.export file"):
        load_source(tmp_path / "net.pt2")


def test_a_program_that_is_damaged_is_read_or_refused_in_one_way(exported: Path, tmp_path: Path) -> None:
    """320 copies of another network gave 273 refusals and no other error."""
    path, refused = tmp_path / "net.pt2", 0
    for data in damaged(exported.read_bytes(), 40, seed=5):
        path.write_bytes(data)
        try:
            source = load_source(path, LoadOptions(shapes={"input": (1, 3, 8, 8)}))
            source.predict([np.zeros((1, *one.shape[1:]), one.dtype) for one in source.inputs])
        except SourceError:
            refused += 1
    assert 20 < refused < 40
