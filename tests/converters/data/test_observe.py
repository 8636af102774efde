"""Calibration streams: what it keeps does not grow, does not depend on order, and can be taken up again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit_converters.data.ranges import METHODS
from edgekit_converters.data.statistics import ObserveOptions, Statistics, observe, visiting_order
from edgekit_converters.formats.graph import open_graph
from edgekit_converters.recipe.conversion_errors import CalibrationError

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(0)


def network(body: str = "a = MatMul(x, w) r = Relu(a) y = Softmax(r)", weights: np.ndarray | None = None):
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[1, 6] x) => (float[1, 4] y) {{ {body} }}'
    )
    weights = RNG.normal(size=(6, 4)).astype(np.float32) if weights is None else weights
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return open_graph("onnx", model.SerializeToString())


def samples(count: int, seed: int = 1) -> list[list[np.ndarray]]:
    return [[row[None]] for row in np.random.default_rng(seed).normal(size=(count, 6)).astype(np.float32)]


def same(a: Statistics, b: Statistics) -> bool:
    return a.samples == b.samples and all(a.ranges(method) == b.ranges(method) for method in METHODS)


GRAPH = network()


def test_every_float_tensor_is_observed_over_all_samples():
    found = observe(GRAPH, samples(20), 20)
    assert list(found.tensors) == ["x", "a", "r", "y"]
    assert (found.samples, found.settled_at) == (20, None)
    whole = np.concatenate([feed[0] for feed in samples(20)])
    assert found.ranges("minmax")["x"] == (float(whole.min()), float(whole.max()))
    assert found.tensors["r"].low == 0
    np.testing.assert_array_equal(found.tensors["x"].channels, [whole.min(axis=0), whole.max(axis=0)])


def test_the_order_of_the_samples_changes_no_range():
    feeds = samples(40)
    assert same(observe(GRAPH, feeds, 40), observe(GRAPH, [feeds[i] for i in visiting_order(40)], 40))


def test_statistics_take_as_much_room_for_many_samples_as_for_few():
    few, many = observe(GRAPH, samples(2), 2), observe(GRAPH, samples(300), 300)
    assert room(few) == room(many)


def room(statistics: Statistics) -> int:
    arrays = [
        array
        for tensor in statistics.tensors.values()
        for holder in (tensor, tensor.histogram)
        for array in vars(holder).values()
        if isinstance(array, np.ndarray)
    ]
    return sum(array.nbytes for array in arrays)


def test_samples_are_read_one_at_a_time_and_no_more_than_wanted():
    read = []

    def stream():
        for number, feed in enumerate(samples(10)):
            read.append(number)
            yield feed

    reported = []
    observe(GRAPH, stream(), 4, lambda *said: reported.append((said, len(read))))
    assert read == [0, 1, 2, 3]
    assert reported == [(("calibration", done, 4), done) for done in (1, 2, 3, 4)]


def test_reading_stops_when_shuffled_samples_bring_nothing_new():
    feeds = samples(32) * 20
    found = observe(GRAPH, feeds, len(feeds), options=ObserveOptions(shuffled=True))
    assert found.settled_at == found.samples < 200


def test_samples_in_their_own_order_are_all_read():
    feeds = samples(32) * 10 + [[10 * feed[0]] for feed in samples(5)]
    found = observe(GRAPH, feeds, len(feeds))
    assert (found.samples, found.settled_at) == (325, None)
    assert found.ranges("minmax")["x"][1] > 10


def test_reading_goes_on_while_ranges_grow():
    feeds = [[feed[0] * 1.1 ** (number // 32)] for number, feed in enumerate(samples(32) * 8)]
    found = observe(GRAPH, feeds, len(feeds), options=ObserveOptions(shuffled=True))
    assert found.settled_at is None


class InterruptedRunError(Exception):
    pass


def broken(feeds, after: int):
    yield from feeds[:after]
    raise InterruptedRunError


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path):
    feeds, state = samples(100), tmp_path / "statistics.npz"
    options = ObserveOptions(resume=state, digest="a", save_every=0)
    with pytest.raises(InterruptedRunError):
        observe(GRAPH, broken(feeds, 70), 100, options=options)
    assert Statistics.load(state).samples == 64
    ran = []
    found = observe(GRAPH, feeds, 100, lambda _, done, total: ran.append(done), options)
    assert ran == list(range(65, 101))
    assert same(found, observe(GRAPH, feeds, 100))
    assert not state.exists()


def test_one_who_says_stop_loses_no_sample(tmp_path: Path):
    feeds, state = samples(50), tmp_path / "statistics.npz"

    def stop(stage: str, done: int, total: int | None) -> None:
        if done == 21:
            raise KeyboardInterrupt

    options = ObserveOptions(resume=state)
    with pytest.raises(KeyboardInterrupt):
        observe(GRAPH, feeds, 50, stop, options)
    assert same(observe(GRAPH, feeds, 50, options=options), observe(GRAPH, feeds, 50))


@pytest.mark.parametrize("spoil", ["digest", "bytes", "tensors"])
def test_what_another_run_left_is_not_taken_up(tmp_path: Path, spoil: str):
    feeds, state = samples(40), tmp_path / "statistics.npz"
    with pytest.raises(InterruptedRunError):
        observe(GRAPH, broken(feeds, 35), 40, options=ObserveOptions(resume=state, digest="a", save_every=0))
    if spoil == "bytes":
        state.write_bytes(state.read_bytes()[:500])
    graph = network("b = MatMul(x, w) y = Relu(b)") if spoil == "tensors" else GRAPH
    ran = []
    digest = "b" if spoil == "digest" else "a"
    observe(graph, feeds, 40, lambda *said: ran.append(said), ObserveOptions(resume=state, digest=digest))
    assert len(ran) == 40


def test_statistics_survive_being_written(tmp_path: Path):
    found = observe(GRAPH, samples(10), 10)
    found.save(tmp_path / "s.npz")
    back = Statistics.load(tmp_path / "s.npz")
    assert same(found, back)
    assert back.to_bytes() == found.to_bytes()
    for name, tensor in found.tensors.items():
        other = back.tensors[name]
        assert (tensor.ends, tensor.axis) == (other.ends, other.axis)
        np.testing.assert_array_equal(tensor.channels, other.channels)
    assert list(tmp_path.iterdir()) == [tmp_path / "s.npz"]


@pytest.mark.parametrize("stored", [b"", b"PK\x03\x04", b"not statistics"])
def test_a_file_that_holds_no_statistics_is_refused(tmp_path: Path, stored: bytes):
    (tmp_path / "s.npz").write_bytes(stored)
    with pytest.raises(CalibrationError, match="not calibration statistics"):
        Statistics.load(tmp_path / "s.npz")
    with pytest.raises(CalibrationError, match="cannot be read"):
        Statistics.load(tmp_path / "missing.npz")


def test_a_network_that_gives_nan_is_refused_with_the_layers_name():
    graph = network("a = MatMul(x, w) s = Sqrt(a) y = Relu(s)", -np.ones((6, 4), np.float32))
    with pytest.raises(CalibrationError, match="'s' gives NaN for sample 1"):
        observe(graph, [[np.ones((1, 6), np.float32)]], 1)


def test_nan_inside_that_is_replaced_is_no_fault_and_leaves_its_tensor_without_a_range(tmp_path: Path):
    graph = network("a = MatMul(x, w) s = Sqrt(a) n = IsNaN(s) y = Where(n, a, s)", np.ones((6, 4), np.float32))
    feeds = [[abs(x) if place < 70 else x] for place, [x] in enumerate(samples(100))]  # of the first 70 none is NaN
    found = observe(graph, feeds, 100, options=ObserveOptions(shuffled=True))
    found.save(tmp_path / "s.npz")
    for one in (found, Statistics.load(tmp_path / "s.npz")):
        assert [name for name, tensor in one.tensors.items() if tensor.undefined] == ["s"]
        assert list(one.ranges("mse")) == ["x", "a", "y"]


def test_silent_and_constant_inputs_give_ranges_that_can_be_used():
    found = observe(GRAPH, [[np.zeros((1, 6), np.float32)]] * 3, 3)
    for method in METHODS:
        for low, high in found.ranges(method).values():
            assert low <= 0 <= high
            assert high - low > 1e-9


def test_no_samples_are_an_error_that_says_what_to_do():
    with pytest.raises(CalibrationError, match="no calibration sample"):
        observe(GRAPH, [], 0)


def test_the_visiting_order_is_the_same_each_time_and_misses_nobody():
    assert visiting_order(100) == visiting_order(100)
    assert sorted(visiting_order(100)) == list(range(100))
    assert visiting_order(100) != list(range(100))


@pytest.mark.parametrize("place", [0, 50, 149])
def test_an_extreme_sample_is_never_lost_wherever_it_comes(place: int):
    feeds = samples(150)
    feeds[place] = [np.array([[-45.0, 50.0, 0.0, 0.0, 0.0, 0.0]], np.float32)]
    found = observe(GRAPH, feeds, 150)
    assert found.ranges("minmax")["x"] == (-45.0, 50.0)
    assert found.tensors["x"].histogram.total == 150 * 6


def test_a_run_whose_state_can_be_neither_read_nor_saved_nor_removed_goes_on(tmp_path: Path):
    (tmp_path / "file").write_text("")
    options = ObserveOptions(resume=tmp_path / "file" / "state", digest="a", save_every=0)
    assert observe(GRAPH, samples(40), 40, options=options).samples == 40
