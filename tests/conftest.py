"""Fixtures that more than one room's tests share. Everything is made under pytest's temporary folders, once a session;
what takes long, once for all of its processes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path

import commands
import numpy as np
import pytest
from once import once
from parts import missing
from property_examples import load_profile

from edgekit_runtime.engines.cuda import absent

# Two small networks are trained and converted here; more threads only fight each other.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "2")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

# A shell that starts the tests in the background ignores Ctrl-C for all that they start: the tests that send it would
# wait.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What tests/support/suites.py asks of pytest is of this session alone: some tests start another.
os.environ.pop("PYTEST_ADDOPTS", None)

load_profile()

SLOW = (
    "arm/", "benchmarks/", "converters/zoo/", "distribution/", "boards/test_emulated", "fuzzing/",
    "building/test_build.py", "building/test_degraded.py", "building/test_delegated.py", "building/test_detector.py",
    "building/test_fashion_mnist.py", "building/test_field.py",
    "bench/test_cold.py", "building/test_installs.py", "building/test_journey.py",
    "building/test_lasting.py", "building/test_repairing.py", "building/test_stateful.py",
    "building/test_api.py::test_a", "building/test_api.py::test_what_a_name_says_is_escaped",
    "building/test_making.py::test_an_artifact_that_fails_on_silence", "building/test_variants.py",
    "converters/targets/test_tflite_recipes.py::test_the_quantizer_needs",
    "building/test_board_recipes.py", "building/test_texts.py", "converters/sources/test_isolated.py",
    "cli/test_secret_options.py", "cli/test_fill.py",
    "cli/test_bench.py::test_a_run_of_nobodys_length", "cli/test_bench.py::test_records_whose_machine_was_busier",
    "cli/test_keys.py::test_one_person_makes", "converters/sources/test_keras.py::test_free_axes_are_pinned",
    "boards/test_check.py", "compressing/test_compress.py::test_an_onnx_model",
    "compressing/test_compress.py::test_a_full_disk", "compressing/test_detector.py",
    "compressing/test_whole_run.py", "compressing/test_interrupted.py",
    "compressing/test_narrower.py", "compressing/test_smaller_input.py", "converters/compress/",
    "converters/fidelity/test_digits.py", "converters/fidelity/test_repair_bench.py",
    "converters/targets/test_convert.py",
    "converters/formats/test_tflite_workload.py::test_efficientnet_lite0",
    "converters/formats/test_tflite_workload.py::test_mobilenet_v1",
    "converters/formats/test_tflite_workload.py::test_published_latencies",
    "building/test_trying.py::test_a_", "building/test_trying.py::test_n", "building/test_trying.py::test_t",
    "building/test_trying.py::test_what_no", "building/test_trying.py::test_without", "docs/test_blocks.py",
    "fleet/test_board_load.py::test_boards_whose_broker_is_killed",
    "fleet/test_large_fleet.py::test_the_page", "fleet/test_proof.py",
    "fleet/test_alerts.py::test_a_fifth_of_the_boards", "fleet/test_rollout_runner.py::test_a_server_that_is_killed",
    "fleet/test_rollout_runner.py::test_pause_abort_and_undo_are_obeyed", "fleet/test_story.py", "interop/",
    "install_faults/test_disks.py", "install_faults/test_points.py", "install_faults/test_power_cuts.py",
    "install_faults/test_together.py",
    "runtime/install/test_agent.py::test_a_kill",
    "runtime/engines/test_vulkan.py", "runtime/engines/test_onnx.py::test_a_build_writes_nothing",
    "runtime/engines/test_onnx_arithmetic.py::test_an_x86_without_vnni",
    "runtime/engines/test_onnx_arithmetic.py::test_the_simulated_processor",
    "runtime/engines/test_onnx_arithmetic.py::test_the_trial",
    "runtime/serving/test_fault_matrix.py",
    "runtime/loading/test_gpu.py::test_nothing_that_is_built", "runtime/loading/test_tune.py::test_every_candidate",
    "runtime/loading/test_tune.py::test_what_a_busy_board_chose",
    "runtime/loading/test_tune.py::test_it_is_measured_once",
    "runtime/serving/test_forked.py", "runtime/system/test_rlimits.py", "runtime/system/test_scarce.py",
    "runtime/loading/test_secret_children.py",
    "shipping/test_deb.py", "shipping/test_foreign.py", "shipping/test_install.py", "shipping/test_mediapipe.py",
    "shipping/test_mender.py",
    "shipping/test_push.py",
    "test_mutation.py",
)  # fmt: skip
"""What `make test` leaves out, with all that needs the demo: each starts many processes, trains, converts whole
networks, or emulates a board."""


FAST_LIMIT_S = 10.0 if os.environ.get("CI") == "true" else 5.0
"""Processor time that a test may take without being in SLOW; fixtures that others share are not counted. A machine of
CI may be half as quick as the one on which a test was written."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    before = _processor_s()
    yield
    taken = _processor_s() - before
    item.user_properties.append(("processor_s", f"{taken:.2f}"))
    if (
        taken > FAST_LIMIT_S
        and item.get_closest_marker("slow") is None
        and item.config.getoption("markexpr") == "not slow"
    ):
        pytest.fail(
            f"it took {taken:.1f} s of processor time: make it quicker, or name it in SLOW of tests/conftest.py"
        )


def _processor_s() -> float:
    """Of this process, its commands, and the children that it has waited for."""
    return sum(os.times()[:4]) + commands.processor_s


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        name = str(item.path.relative_to(here)) + item.nodeid.partition(".py")[2]
        if name.startswith(SLOW) or "demo" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("gpu") is not None and (why := absent()):
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Chromium without a window, steered by its own driver."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        missing("Chromium with its driver", "sudo apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    profile = tmp_path_factory.mktemp("chromium")
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader",  # WebGL without a GPU
                 "--no-first-run", "--disable-background-networking",
                 "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--window-size=1360,900",
                 f"--user-data-dir={profile}"):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options=options, service=Service(driver))
    running.set_page_load_timeout(45)  # a page whose connections run out waits for a minute
    yield running
    running.quit()


@dataclass(frozen=True)
class Digits:
    """A small CNN trained on scikit-learn's digits, and its data.

    model: .keras; input `image` float32 [N, 8, 8, 1] in 0..1 (pixel / 16), output `probs` float32 [N, 10].
    calibration: .npz with `x` [200, 8, 8, 1] from the training set. evaluation: .npz with `x` [597, 8, 8, 1] and `y`
    [597], held out from both.
    """

    model: Path
    calibration: Path
    evaluation: Path


@pytest.fixture(scope="session")
def digits_model(request: pytest.FixtureRequest) -> Digits:
    """Trained in a few seconds; 97 % or better on the held-out digits, or the fixture fails."""
    pytest.importorskip("keras")
    return _digits(once(request, "digits", lambda folder: _make_digits(_digits(folder))))


def _digits(folder: Path) -> Digits:
    return Digits(folder / "digits.keras", folder / "calibration.npz", folder / "evaluation.npz")


def _make_digits(digits: Digits) -> None:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x = (pixels / 16.0).astype(np.float32).reshape(-1, 8, 8, 1)[order]
    y = labels.astype(np.int64)[order]
    np.savez(digits.calibration, x=x[:200])
    np.savez(digits.evaluation, x=x[1200:], y=y[1200:])
    model = _train_digits(x[:1200], y[:1200])
    model.save(digits.model)
    accuracy = float((model.predict_on_batch(x[1200:]).argmax(1) == y[1200:]).mean())
    assert accuracy >= 0.97, f"the digits network reached only {accuracy:.3f}"


def _train_digits(x, y):
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    image = keras.Input((8, 8, 1), name="image")
    t = layers.Conv2D(16, 3, padding="same", use_bias=False, name="conv1")(image)
    t = layers.ReLU()(layers.BatchNormalization(momentum=0.9, name="bn1")(t))
    t = layers.DepthwiseConv2D(3, padding="same", name="depthwise")(t)
    t = layers.Conv2D(32, 1, activation="relu", name="conv2")(t)
    t = layers.Conv2D(32, 3, strides=2, padding="same", activation="relu", name="conv3")(t)
    t = layers.Flatten()(t)
    t = layers.Dense(48, activation="relu", name="dense1")(t)
    model = keras.Model(image, layers.Dense(10, activation="softmax", name="probs")(t), name="digits")
    model.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy")
    model.fit(x, y, batch_size=64, epochs=15, verbose=0)
    return model


@pytest.fixture(scope="session")
def digits_onnx(digits_model: Digits, request: pytest.FixtureRequest) -> Path:
    """The same network as float ONNX."""
    from edgekit_converters.sources.load import load

    def make(folder: Path) -> None:
        (folder / "digits.onnx").write_bytes(load(digits_model.model).onnx())

    return once(request, "digits-onnx", make) / "digits.onnx"


@pytest.fixture(scope="session")
def finder(request: pytest.FixtureRequest) -> Path:
    """The folder in which docs/examples/finder.py has left its network, its contract and its pictures."""
    pytest.importorskip("keras")

    def make(folder: Path) -> None:
        script = shutil.copy(Path(__file__).parents[1] / "docs" / "examples" / "finder.py", folder)
        done = subprocess.run(
            [sys.executable, script], cwd=folder, capture_output=True, text=True, timeout=500, check=False
        )
        assert done.returncode == 0, done.stderr

    return once(request, "finder", make)


@pytest.fixture(autouse=True, scope="session")
def _own_state_folder(tmp_path_factory: pytest.TempPathFactory):
    """Verdicts of self-tests, keys and what builds keep go to temporary folders, never to the developer's own.

    What runs fastest here is measured by the tests that are about it alone.
    """
    os.environ["EDGEKIT_STATE_DIR"] = str(tmp_path_factory.mktemp("state"))
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))
    os.environ.pop("EDGEKIT_TRUST", None)
    os.environ["EDGEKIT_TUNE"] = "off"
    os.environ["EDGEKIT_ISOLATE"] = (
        "off"  # a process each costs seconds; commands that tests run as a person do have it
    )


@dataclass(frozen=True)
class Ran:
    """What a command came back with."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        """Exactly one JSON object on stdout, or the test fails."""
        import json

        lines = self.out.strip().splitlines()
        assert len(lines) == 1, self.out
        return json.loads(lines[0])


def run_edgekit(*arguments: str | Path, cwd: Path, **env: str) -> Ran:
    """`edgekit ARGUMENTS` as a person runs it, in a process of its own.

    A traceback fails the test. env: set besides.
    """
    environ = {**os.environ, "EDGEKIT_ISOLATE": "on", **env}
    ran = Ran(*commands.run([str(argument) for argument in arguments], cwd, environ, 900.0))
    assert "Traceback" not in ran.err, ran.err
    return ran


@pytest.fixture
def edgekit(tmp_path: Path):
    return lambda *arguments: run_edgekit(*arguments, cwd=tmp_path)


@pytest.fixture
def in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As `edgekit`, in this process: for tables of refusals, of which each process would take a second to start."""
    import contextlib
    import io

    from edgekit.cli.main import main

    def run(*arguments: str | Path) -> Ran:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        assert "Traceback" not in err.getvalue(), err.getvalue()
        return Ran(left.value.code, out.getvalue(), err.getvalue())

    monkeypatch.chdir(tmp_path)
    return run


@dataclass(frozen=True)
class Demo:
    """`edgekit demo` run once: its working directory (which holds demo/) and what it printed."""

    directory: Path
    ran: Ran

    @property
    def folder(self) -> Path:
        return self.directory / "demo"


@pytest.fixture(scope="session")
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The whole demo, as `make demo` runs it, in a folder of its own: about a minute. This process's own copy."""
    import json

    pytest.importorskip("keras")
    made = once(request, "demo", _run_demo)
    directory = tmp_path_factory.mktemp("demo") / "work"
    shutil.copytree(made / "work", directory, symlinks=True)
    if (made / "kept").exists():  # what the build remembers, for the builds after it
        shutil.copytree(made / "kept", os.environ["XDG_CACHE_HOME"], symlinks=True, dirs_exist_ok=True)
    return Demo(directory, Ran(**json.loads((made / "ran.json").read_text())))


def _run_demo(folder: Path) -> None:
    import json

    (folder / "work").mkdir()
    ran = run_edgekit("demo", cwd=folder / "work", XDG_CACHE_HOME=str(folder / "kept"))
    (folder / "ran.json").write_text(json.dumps(asdict(ran)))


@pytest.fixture(scope="session")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .keras model with three inputs and three outputs whose order is not alphabetical; one input holds indexes."""
    keras = pytest.importorskip("keras")
    layers = keras.layers
    keras.utils.set_random_seed(0)
    zebra, apple = keras.Input((8, 8, 3), name="zebra"), keras.Input((5,), name="apple")
    ids = keras.Input((3,), name="mid ids", dtype="int32")
    embedded = layers.Flatten()(layers.Embedding(4, 6)(ids))
    pooled = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3, activation="relu")(zebra))
    joined = layers.Concatenate()([pooled, layers.Dense(4)(apple), embedded])
    outputs = [
        layers.Dense(2, name="yak")(joined),
        layers.Dense(7, activation="softmax", name="box")(joined),
        layers.Dense(2, name="ant")(pooled),
    ]
    path = tmp_path_factory.mktemp("several") / "several.keras"
    keras.Model([zebra, apple, ids], outputs, name="several").save(path)
    return path


@pytest.fixture(scope="session")
def divided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `divided.keras`, a network with a division, and `x.npz`, what it is calibrated with.

    TFLite's int8 division fails where the divisor is 0.
    """
    import keras

    folder = tmp_path_factory.mktemp("divided")
    keras.utils.set_random_seed(1)
    x = keras.Input((16,), name="x")
    hidden = keras.layers.Dense(24, activation="relu")(x)
    shares = keras.ops.divide(hidden, keras.ops.sum(hidden, axis=1, keepdims=True) + 1e-6)
    keras.Model(x, keras.layers.Dense(5, name="y")(shares)).save(folder / "divided.keras")
    np.savez(folder / "x.npz", x=np.random.default_rng(0).normal(size=(80, 16)).astype(np.float32))
    return folder


@pytest.fixture(scope="session")
def planted(digits_model: Digits, request: pytest.FixtureRequest):
    """Files that some runtimes refuse, or answer wrongly with: see `planted.Planted`."""
    from planted import Planted, plant

    made = once(request, "planted", lambda folder: plant(digits_model.model, digits_model.calibration, folder))
    return Planted.of(made)


@pytest.fixture(scope="session")
def postgres():
    from postgres import Postgres

    with Postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty store: once on SQLite, once on PostgreSQL."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgres").url()
    return f"sqlite:///{tmp_path / 'fleet.db'}"


@pytest.fixture
def open_store(store_url: str):
    """Opens the fleet's store, the same one again and again."""
    from edgekit.fleet.store.databases import PostgresStore, SqliteStore

    stores = []

    def opens(**options):
        if store_url.startswith("postgresql"):
            stores.append(PostgresStore.open(store_url, **options))
        else:
            stores.append(SqliteStore.open(Path(store_url.removeprefix("sqlite:///")), **options))
        return stores[-1]

    yield opens
    for store in stores:
        store.close()
