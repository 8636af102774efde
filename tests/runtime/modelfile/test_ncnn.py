"""An ncnn network is judged before ncnn sees it: every count, blob, shape and weight, or one kind of error."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tiny

from edgekit_runtime.modelfile.check import check_model
from edgekit_runtime.modelfile.ncnn_structure import NcnnSide, pack_network, read_network
from edgekit_runtime.system.errors import ModelFileError

TINY = tiny.model_bytes("ncnn-f32")
HALF, INT8 = (0x01306B47).to_bytes(4, "little"), (0x000D4B38).to_bytes(4, "little")


def network(*layers: str, shape=(1, 4, 6, 6), output=(1, 4, 6, 6), weights: bytes = b"", counts="") -> bytes:
    """The layers between an input `x` and an output `y`."""
    blobs = sum(int(layer.split()[3]) for layer in layers) + 1
    head = ["7767517", counts or f"{len(layers) + 1} {blobs}", "Input in 0 1 x"]
    return pack_network(
        "\n".join([*head, *layers, ""]).encode(), weights, [NcnnSide("x", shape)], [NcnnSide("y", output)]
    )


def floats(count: int, tag: bytes | None = bytes(4)) -> bytes:
    return (tag or b"") + np.ones(count, "<f2" if tag == HALF else "<f4").tobytes()


def eight(count: int, scales: int = 0) -> bytes:
    return INT8 + np.ones(count, np.int8).tobytes() + floats(scales, None)


def test_the_facts_of_a_sound_one():
    facts = check_model("ncnn", TINY)
    assert facts.ops == ("Convolution", "InnerProduct", "Input", "Reduction", "Softmax")
    assert (facts.operators, facts.graphs, facts.tensors) == (5, 1, 5)
    assert (facts.constant_bytes, facts.largest_tensor_bytes) == (4 * (81 + 12 + 4) + 8, 4 * 3 * 64)


def test_it_is_written_anew_as_it_was_read():
    first = read_network(TINY)
    again = read_network(pack_network(first.param().encode(), first.weights, first.inputs, first.outputs))
    assert again.layers == first.layers


SOUND = {
    "a convolution": (["Convolution c 1 1 x y 0=2 1=3 4=1 5=1 6=72"], (1, 2, 6, 6), floats(72) + floats(2, None)),
    "in 16 bits": (["Convolution c 1 1 x y 0=2 1=3 4=1 6=72"], (1, 2, 6, 6), floats(72, HALF)),
    "strided and padded as TensorFlow does": (
        ["Convolution c 1 1 x y 0=1 1=3 3=4 4=-233 6=36"],
        (1, 1, 2, 2),
        floats(36),
    ),
    "depthwise": (["ConvolutionDepthWise c 1 1 x y 0=4 1=3 6=36 7=4"], (1, 4, 4, 4), floats(36)),
    "in 8 bits": (["Convolution c 1 1 x y 0=2 1=3 4=1 5=1 6=72 8=1"], (1, 2, 6, 6), eight(72) + floats(5, None)),
    "depthwise in 8 bits": (["ConvolutionDepthWise c 1 1 x y 0=4 1=3 6=36 7=4 8=1"], (1, 4, 4, 4), eight(36, 5)),
    "dense in 8 bits": (["InnerProduct d 1 1 x y 0=3 2=432 8=1"], (1, 3), eight(432, 4)),
    "transposed": (["Deconvolution c 1 1 x y 0=3 1=2 3=2 6=48"], (1, 3, 12, 12), floats(48)),
    "pooled, rounded up": (["Pooling p 1 1 x y 1=3 2=2"], (1, 4, 3, 3), b""),
    "pooled, rounded down": (["Pooling p 1 1 x y 1=3 2=2 5=1"], (1, 4, 2, 2), b""),
    "sliced": (["Slice s 1 2 x a b -23300=2,1,-233", "BinaryOp m 2 1 a b y 0=2"], (1, 3, 6, 6), b""),
    "split and joined": (["Split s 1 2 x a b", "Concat j 2 1 a b y 0=1"], (1, 4, 12, 6), b""),
    "shaped": (["Reshape r 1 1 x a 0=36 1=-1", "Permute t 1 1 a y 0=1"], (1, 36, 4), b""),
    "resized": (["Interp i 1 1 x y 0=2 1=2.0 2=1.5"], (1, 4, 12, 9), b""),
    "channels become pixels": (["PixelShuffle p 1 1 x y 0=2"], (1, 1, 12, 12), b""),
    "a mean": (["Reduction r 1 1 x y 0=3 1=0 -23303=2,1,2 4=0 5=1"], (1, 4), b""),
    "a constant": (["MemoryData d 0 1 k 0=1", "BinaryOp a 2 1 x k y"], (1, 4, 6, 6), floats(1, None)),
    "normalised": (["BatchNorm n 1 1 x y 0=4 1=1e-3"], (1, 4, 6, 6), floats(16, None)),
}


@pytest.mark.parametrize("what", SOUND)
def test_shapes_that_are_derived_are_those_that_ncnn_computes(what):
    layers, output, weights = SOUND[what]
    data = network(*layers, output=output, weights=weights)
    ncnn = pytest.importorskip("ncnn", reason="pip install ncnn")
    assert ncnn is not None
    from edgekit_runtime.engines.registry import load_engine

    with load_engine("ncnn", data) as engine:
        (answer,) = engine.run([np.ones((1, 4, 6, 6), np.float32)])
    assert answer.shape == output
    assert np.isfinite(answer).all()


CONVOLUTION = "Convolution c 1 1 x y 0=2 1=3 4=1 6=72"
DAMAGED = {
    "another type": (["Einsum e 1 1 x y"], b"", "a type that edgekit does not check"),
    "a layer that opens files": (["../custom c 1 1 x y"], b"", "a type that edgekit does not check"),
    "fewer weights than it says": ([CONVOLUTION], floats(71), "end beyond the file"),
    "more weights": (
        ["Convolution c 1 1 x y 0=4 1=3 4=1 6=144"],
        floats(145),
        "weights take 580 bytes, and 584 follow",
    ),
    "8 bits that no parameter announces": ([CONVOLUTION], INT8 + bytes(72), "not 32-bit or 16-bit floats"),
    "floats that should be 8 bits": ([f"{CONVOLUTION} 8=1"], floats(72) + floats(3, None), "not in 8 bits"),
    "8 bits without scales": ([f"{CONVOLUTION} 8=1"], INT8 + bytes(72), "end beyond the file"),
    "8 bits with a result of 8 bits": ([f"{CONVOLUTION} 8=101"], INT8 + bytes(84), "parameter 8 is 101"),
    "8 bits of few groups": (["ConvolutionDepthWise c 1 1 x y 0=6 1=1 6=12 7=2 8=1"], eight(12, 3), "parameter 8 is 1"),
    "8 bits of a transposed one": (["Deconvolution d 1 1 x y 0=2 1=2 6=32 8=1"], INT8 + bytes(44), "parameter 8 is 1"),
    "other channels than come": (["Convolution c 1 1 x y 0=2 1=3 4=1 6=54"], floats(54), "its shapes imply 72"),
    "groups that only another layer reads": ([f"{CONVOLUTION} 7=2"], floats(72), r"parameters \[7\]"),
    "weights that come as an input": ([f"{CONVOLUTION} 19=1"], floats(72), r"parameters \[19\]"),
    "a kernel of a real number": ([CONVOLUTION.replace("1=3", "1=3.0")], floats(72), "parameter 1 is 3.0"),
    "a stride of nothing": ([f"{CONVOLUTION} 3=0"], floats(72), "parameter 3 is 0"),
    "no kernel": (["Convolution c 1 1 x y 0=2 6=8"], floats(8), "no kernel"),
    "a window beyond the picture": (["Convolution c 1 1 x y 0=2 1=9 6=648"], floats(648), "makes the shape"),
    "an expression": (['Reshape r 1 1 x y 6="0w"'], b"", "which edgekit does not check"),
    "another size": (["Reshape r 1 1 x y 0=36 1=5"], b"", "cannot become"),
    "a division by nothing": (["Reshape r 1 1 x y 0=0 1=-1"], b"", "takes the input's"),
    "a blob that nothing makes": (["ReLU r 1 1 z y"], b"", "'z', which no layer before it makes"),
    "a blob with two readers": (["ReLU a 1 1 x b", "ReLU c 1 1 x y"], b"", "another has read"),
    "a blob made twice": (["Split s 1 2 x y y"], b"", "names one twice"),
    "a layer that makes itself": (["ReLU r 1 1 y y"], b"", "no layer before it makes"),
    "more blobs than names": (["ReLU r 9 1 x y"], b"", "fewer blobs than it says"),
    "two results of one": (["ReLU r 1 2 x y z"], b"", "makes 1 blobs and names 2"),
    "parts beyond the end": (["Slice s 1 2 x y b -23300=2,3,2"], b"", "are not those of 4"),
    "a list with another length": (["Slice s 1 2 x y b -23300=3,3,1"], b"", "another length"),
    "a number for a list": (["Slice s 1 2 x y b 0=3"], b"", "not a list"),
    "an axis that is not there": (["Concat j 1 1 x y 0=3"], b"", "parameter 0 is 3"),
    "sides that do not fit": (["Slice s 1 2 x a b -23300=2,2,4 1=1", "BinaryOp m 2 1 a b y"], b"", "its inputs are"),
    "an order that is not there": (["Permute p 1 1 x y 0=6"], b"", "parameter 0 is 6"),
    "a resize of one row": (["Reshape r 1 1 x a 0=144 1=1 2=1", "Interp i 1 1 a y 0=2 3=4 4=4"], b"", "too small"),
    "a gigantic one": (["Interp i 1 1 x y 0=1 3=99999 4=99999"], b"", "more than the"),
    "a gigantic constant": (["MemoryData d 0 1 y 0=16000000 1=16000000"], b"", "more than the"),
    "numbers for other channels": (["BatchNorm n 1 1 x y 0=5"], floats(20, None), "5 numbers for 4 channels"),
    "an activation without its bounds": ([f"{CONVOLUTION} 9=3"], floats(72), "too few parameters"),
    "another output": (["ReLU r 1 1 x z"], b"", "no layer makes the output 'y'"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_what_ncnn_would_trust_is_refused(what):
    layers, weights, message = DAMAGED[what]
    with pytest.raises(ModelFileError, match=message):
        check_model("ncnn", network(*layers, weights=weights))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (TINY.replace(b"\n5 5\n", b"\n5 4\n"), "5 layers and 5 blobs, and says 5 4"),
        (TINY.replace(b"7767517", b"7767518"), "not a network of ncnn"),
        (TINY.replace(b"[1,3,8,8]", b"[2,3,8,8]"), "has the shape"),
        (TINY.replace(b"[1,3,8,8]", b"[1,4,8,8]"), "imply"),
        (TINY.replace(b'"in0","shape"', b'"in1","shape"'), "does not name this input"),
        (re.sub(rb'"param_bytes":\d+', b'"param_bytes":9999', TINY), "longer than the file"),
        (TINY.replace(b"\n", b" ", 1), "first line cannot be read"),
        (TINY[:200], "longer than the file"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(data, message):
    assert data != TINY
    with pytest.raises(ModelFileError, match=message):
        check_model("ncnn", data)
