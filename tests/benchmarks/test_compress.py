"""The figures of compress: files whose zeros are where they are said to be, and one network for every peer."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.convert


def test_zeros_are_those_of_the_1x1_convolutions_and_both_layouts_answer_alike():
    from benchmarks.compress.sparse import pointwise
    from edgekit_runtime.engines.registry import load_engine

    image = np.random.default_rng(0).random((1, 96, 96, 3)).astype(np.float32)
    full, _ = pointwise(0.0)
    dense, sparse = pointwise(0.9)
    answers = []
    for file in (dense, sparse):
        with load_engine("tflite", file, engine="litert") as engine:
            answers.append(engine.run([image])[0].copy())
    np.testing.assert_allclose(answers[0], answers[1], atol=1e-6)
    assert len(dense) == pytest.approx(len(full), rel=0.01)
    assert len(sparse) < 0.25 * len(dense)


def test_tfmot_trains_the_network_of_the_benchmark():
    """Keras 2 is not here: the peer's architecture is built with Keras 3's layers, and takes the same weights."""
    import keras

    from benchmarks.compress import qat, tfmot_peer

    (x, y), (items, labels) = qat.digits()
    ours = qat.network(0, x[:64], y[:64])
    theirs = tfmot_peer.network(keras.layers, keras.Model)
    theirs.set_weights(ours.get_weights())
    np.testing.assert_allclose(theirs.predict(items[:32], verbose=0), ours.predict(items[:32], verbose=0), atol=1e-6)
    assert len(items) == len(labels) == 597


def test_nncf_trains_the_network_of_the_benchmark():
    torch = pytest.importorskip("torch", reason="the 'torch' extra is not installed: make test-torch")
    from benchmarks.compress import nncf_peer, qat

    random = np.random.default_rng(0)
    x, y, items = (random.random((64, 8, 8, 1), np.float32), random.integers(0, 10, 64),
                   random.random((32, 8, 8, 1), np.float32))  # fmt: skip
    ours = qat.network(0, x, y)
    theirs = nncf_peer.network(torch)
    nncf_peer.set_weights(torch, theirs, ours.get_weights())
    theirs.eval()
    with torch.no_grad():
        answers = torch.softmax(theirs(torch.tensor(items.transpose(0, 3, 1, 2).copy())), 1).numpy()
    np.testing.assert_allclose(answers, ours.predict(items, verbose=0), atol=1e-5)
