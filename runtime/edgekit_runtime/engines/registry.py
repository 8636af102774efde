"""The engine protocol, the table of engines, and `pick`, which chooses one for a format.

Rules:
- all that edgekit knows of an engine is its row in ENGINES: values of --engine, `edgekit doctor`, bills of materials;
- importing this module imports no NumPy, so that commands can print the table as help.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import sys
import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from edgekit_runtime.modelfile.check import DELEGATED
from edgekit_runtime.system.closing import ClosedOnExit
from edgekit_runtime.system.errors import EngineError, MissingExtraError
from edgekit_runtime.system.records import record, replace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgekit_runtime.contract.spec import TensorSpec

Kernels = Literal["default", "plain", "reference", "fast", "vulkan"]
"""Sets of kernels.

default: the engine's choice, XNNPACK for TFLite.
plain: TFLite's optimized kernels without XNNPACK.
reference: TFLite's reference kernels, slow, with the same bits on every processor.
fast: on an x86 without VNNI 16-bit sums of products, which saturate, in ONNX Runtime and OpenVINO.
vulkan: a GPU through its Vulkan driver: ncnn's shaders, WebGPU in LiteRT and in a plugin of ONNX Runtime.
"""

Arithmetic = Literal["exact", "fast"]
DeviceKind = Literal["cpu", "gpu"]
_METADATA = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*)(-py[^-]+)?\.(dist|egg)-info")
ANY_GPU = "gpu"
"""In place of an engine's name: any engine of a GPU, and no other."""


@record(frozen=True)
class EngineSetup:
    """How an engine is to run an artifact.

    delegate: an external TFLite delegate, "PATH" or "PATH,key=value,..." (Edge TPU: "libedgetpu.so.1").
    batch: items to make room for, where the artifact's batch axis is free.
    keep: whether a built engine may be kept on disk; never that of an encrypted artifact.
    kv_mb: bound of a language model's cache of keys and values, MB (1e6 bytes); None for the engine's choice.
    """

    threads: int = 1
    kernels: Kernels = "default"
    delegate: str | None = None
    batch: int = 1
    keep: bool = True
    kv_mb: float | None = None


@record(frozen=True)
class EngineInfo:
    """The running engine. gpu: the names of the GPUs that it may be on; empty on the processor."""

    name: str
    version: str
    threads: int
    kernels: Kernels = "default"
    delegate: str | None = None
    gpu: str = ""

    @property
    def arithmetic(self) -> Arithmetic:
        """How sums of 8-bit products are computed: `fast` ones can saturate."""
        return "fast" if self.kernels == "fast" else "exact"


class Engine(ClosedOnExit["Engine"]):
    """An artifact that is loaded and runs. Leaving the `with` block closes it.

    inputs, outputs: named as in the file, in the engine's order.
    """

    info: EngineInfo
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @abstractmethod
    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """One inference. Arrays carry the batch axis and have exactly the declared dtypes.

        The results never alias a buffer of the engine; the inputs have been read when it returns. One thread at a time.
        """

    @abstractmethod
    def close(self) -> None:
        """Free its memory. Idempotent; `run` raises EngineError from then on."""

    def reset(self) -> None:
        """Forget the state that earlier runs left inside the model (TFLite variables)."""


@record(frozen=True)
class EngineKind:
    """A row of the table: all that the rest of edgekit knows of one engine.

    distribution, extra: what installs it.
    use: its purpose, for help texts.
    engine: "module:class" of ours, made of the heavy import, the EngineInfo, format, bytes and setup.
    module: the heavy import.
    device: one of a GPU answers only if it was measured here or asked for.
    on_boards: whether a board's profile may install it, so that `deploy` and `estimate` offer it.
    kernels: its sets of kernels, the preferred one first.
    portable: the kernels that differ least between processors; they answer golden examples.
    vulkan: its class for the kernels `vulkan`, if another; plugin: the distribution that these need besides.
    delegates: whether it takes external ones.
    noisy: its import writes notices to stderr.
    numpy_1_below: earlier versions need NumPy 1, whatever their metadata say.
    overwritten_by: distributions that install the same files; one of them alone brings the engine, too.
    reporters: packages that report its use to others; its import does not find them.
    own_process: it always runs in one, which alone imports it.
    """

    formats: tuple[str, ...]
    distribution: str
    extra: str
    use: str
    engine: str
    module: str
    device: DeviceKind = "cpu"
    on_boards: bool = False
    kernels: tuple[Kernels, ...] = ("default",)
    portable: Kernels = "default"
    vulkan: str = ""
    plugin: str = ""
    delegates: bool = False
    noisy: bool = False
    numpy_1_below: tuple[int, ...] = ()
    overwritten_by: tuple[str, ...] = ()
    reporters: tuple[str, ...] = ()
    own_process: bool = False

    def numpy_for(self, version: str) -> str:
        """The requirement of this version of the engine on NumPy: "numpy<2" or "numpy"."""
        known = re.match(r"\d+(\.\d+)*", version)
        parts = tuple(int(part) for part in known[0].split(".")) if known is not None else ()
        return "numpy<2" if parts < self.numpy_1_below else "numpy"


# In order of preference within a format.
ENGINES = {
    "litert": EngineKind(
        ("tflite",), "ai-edge-litert", "litert", "run TFLite artifacts", "litert:TFLiteEngine",
        "ai_edge_litert.interpreter", on_boards=True, kernels=("default", "plain", "reference", "vulkan"),
        vulkan="litert:CompiledEngine", delegates=True, noisy=True, numpy_1_below=(1, 1),
    ),
    # Its default kernels on x86 differ from those on ARM by up to 15 steps; its reference kernels give the same bits.
    "tflite-runtime": EngineKind(
        ("tflite",), "tflite-runtime", "tflite", "run TFLite artifacts where LiteRT has no wheel",
        "litert:TFLiteEngine", "tflite_runtime.interpreter", on_boards=True,
        kernels=("default", "plain", "reference"), portable="reference", delegates=True, numpy_1_below=(3,),
    ),
    "onnxruntime": EngineKind(
        ("onnx",), "onnxruntime", "onnx", "run ONNX artifacts", "onnxruntime:OnnxEngine", "onnxruntime",
        on_boards=True, kernels=("default", "fast", "vulkan"), plugin="onnxruntime-ep-webgpu", numpy_1_below=(1, 19),
        overwritten_by=("onnxruntime-gpu",),
    ),
    "openvino": EngineKind(
        ("onnx", "tflite"), "openvino", "openvino", "run ONNX and TFLite artifacts, measured against the engines above",
        "openvino:OpenVinoEngine", "openvino", kernels=("default", "fast"), reporters=("openvino_telemetry",),
    ),
    "ncnn": EngineKind(
        ("ncnn",), "ncnn", "ncnn", "run ncnn artifacts, also on 32-bit boards", "ncnn:NcnnEngine", "ncnn",
        on_boards=True, kernels=("default", "vulkan"),
    ),
    "llama.cpp": EngineKind(
        ("gguf",), "xllamacpp", "llm", "generate text with language models in GGUF", "llamacpp:LlamaEngine",
        "xllamacpp", on_boards=True, own_process=True,
    ),
    "tensorrt": EngineKind(
        ("onnx",), "tensorrt", "tensorrt", "run ONNX artifacts on an NVIDIA GPU", "tensorrt:TensorRtEngine", "tensorrt",
        "gpu",
    ),
    "tensorrt-rtx": EngineKind(
        ("onnx",), "tensorrt-rtx-cu13-bindings", "tensorrt-rtx", "run ONNX artifacts on an NVIDIA RTX GPU",
        "tensorrt:TensorRtEngine", "tensorrt_rtx_bindings", "gpu",
    ),
    "onnxruntime-cuda": EngineKind(
        ("onnx",), "onnxruntime-gpu", "onnx-cuda", "run ONNX artifacts on an NVIDIA GPU, and on the processor",
        "onnxruntime:OnnxEngine", "onnxruntime", "gpu",
    ),
    "torch-cuda": EngineKind(
        ("onnx",), "torch", "torch-cuda", "run ONNX artifacts on any NVIDIA GPU that PyTorch runs on",
        "torch_cuda:TorchEngine", "torch", "gpu",
    ),
}  # fmt: skip


def version_of(distribution: str) -> str | None:
    """The installed version, by the name of its metadata's folder; None if not installed.

    A folder of `sys.path` is listed once, and again once it has changed.
    """
    name = distribution.replace("-", "_").replace(".", "_").lower()
    for folder in sys.path:
        try:
            changed = os.stat(folder or ".").st_mtime_ns  # noqa: PTH116 - a Path for each costs more
        except OSError:
            continue
        if (version := _versions_in(folder or ".", changed).get(name)) is not None:
            return version
    return None


@functools.lru_cache(64)
def _versions_in(folder: str, changed: int) -> dict[str, str]:
    """Name -> version. `importlib.metadata`, which reads the files, takes 25 ms to import."""
    try:
        found = [_METADATA.fullmatch(file) for file in os.listdir(folder) if file.endswith("-info")]  # noqa: PTH208
    except OSError:
        return {}
    return {re.sub(r"[-_.]+", "_", one["name"]).lower(): one["version"] for one in found if one is not None}


def version_of_engine(name: str) -> str | None:
    """The installed version of an engine, from package metadata; None if not installed."""
    kind = ENGINES[name]
    versions = (version_of(distribution) for distribution in (kind.distribution, *kind.overwritten_by))
    return next((version for version in versions if version is not None), None)


_QUIET = threading.Lock()
_loud: list[int | None] = []
"""One for each that wants quiet now; the first has a copy of the real fd 2, and is the last to go."""


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Keep notices that the C++ side writes to fd 2 off a terminal, unless EDGEKIT_ENGINE_LOG=1."""
    if os.environ.get("EDGEKIT_ENGINE_LOG"):
        yield
        return
    with _QUIET:
        _loud.append(None if _loud else _hush())
    try:
        yield
    finally:
        with _QUIET:
            if (saved := _loud.pop()) is not None:
                os.dup2(saved, 2)
                os.close(saved)


def _hush() -> int | None:
    """A copy of fd 2, which now leads nowhere; None where that cannot be had."""
    try:
        saved = os.dup(2)
    except OSError:  # no stderr at all: a daemon
        return None
    try:
        null = os.open(os.devnull, os.O_WRONLY)
    except OSError:  # too many open files: a notice does no harm
        os.close(saved)
        return None
    os.dup2(null, 2)
    os.close(null)
    return saved


def on_gpu(name: str, kernels: Kernels = "default") -> bool:
    return kernels == "vulkan" or (name in ENGINES and ENGINES[name].device == "gpu")


def gpu_name(kernels: Kernels) -> str:
    """The GPU of CUDA's driver, or those of Vulkan's; it loads the driver."""
    if kernels == "vulkan":
        from edgekit_runtime.engines.vulkan import devices

        with quiet_stderr():
            return "; ".join(devices())
    from edgekit_runtime.engines.cuda import gpu

    return gpu().name


def with_vulkan() -> dict[str, str]:
    """Engines whose kernels `vulkan` are installed, and their versions; asks no driver."""
    kinds = {name: kind.plugin or kind.distribution for name, kind in ENGINES.items() if "vulkan" in kind.kernels}
    versions = {name: version_of(distribution) for name, distribution in kinds.items()}
    return {name: version for name, version in versions.items() if version is not None}


def available() -> dict[str, str]:
    """Installed engines and their versions, from package metadata, without a heavy import.

    An engine of a GPU is listed even without a GPU; loading it raises then.
    """
    versions = {name: version_of_engine(name) for name in ENGINES}
    return {name: version for name, version in versions.items() if version is not None}


def pick(format: str, installed: dict[str, str] | None = None) -> str:  # noqa: A002
    """The first installed engine of the CPU for a format, in the order of ENGINES.

    Raises MissingExtraError, with the command that adds an engine, if none is installed.
    """
    installed = available() if installed is None else installed
    candidates = [name for name, kind in ENGINES.items() if format in kind.formats and kind.device == "cpu"]
    if not candidates:
        known = sorted({format for kind in ENGINES.values() for format in kind.formats})  # noqa: A001
        raise EngineError(f"no engine runs the format '{format}'", do=f"Known formats: {', '.join(known)}")
    for name in candidates:
        if name in installed:
            return name
    raise MissingExtraError(ENGINES[candidates[0]].extra, f"running a {format} artifact")


def expected_info(name: str, setup: EngineSetup) -> EngineInfo:
    """The `EngineInfo` expected after loading, from package metadata, without an import."""
    kind = ENGINES[name]
    kernels = setup.kernels if setup.kernels in kind.kernels else "default"
    delegate = setup.delegate if kind.delegates else None
    return EngineInfo(name, version_of_engine(name) or "unknown", setup.threads, kernels, delegate)


def import_engine(name: str) -> Any:
    """The heavy import behind an engine, without the packages that would report it.

    Raises EngineError, before the import, if it needs a GPU and there is none.
    """
    kind = ENGINES[name]
    if kind.device == "gpu":
        from edgekit_runtime.engines.cuda import gpu

        gpu()
    if kind.own_process:
        if importlib.util.find_spec(kind.module) is None:
            raise ImportError(f"{kind.module} is not installed")
        return None
    hidden = [reporter for reporter in kind.reporters if reporter not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # with None there, importing it is an ImportError
    try:
        with quiet_stderr() if kind.noisy else contextlib.nullcontext():
            return importlib.import_module(kind.module)
    finally:
        for reporter in hidden:
            sys.modules.pop(reporter, None)


def load_engine(
    format: str,  # noqa: A002
    data: bytes,
    *,
    threads: int = 1,
    engine: str | None = None,
    kernels: Kernels = "default",
) -> Engine:
    """Load an artifact's bytes into an engine, by default the one that `pick` chooses.

    A file with a delegate's own operators gets the delegate that EDGEKIT_DELEGATE names.
    Raises EngineError if the engine refuses the bytes, MissingExtraError if it is not installed.
    """
    return load_with(engine or pick(format), format, data, EngineSetup(threads, kernels, delegate_for(format, data)))


def delegate_for(format: str, data: bytes) -> str | None:  # noqa: A002
    """The delegate that EDGEKIT_DELEGATE names, if an operator of the file needs one."""
    needed = format == "tflite" and any(name.encode() in data for name in DELEGATED)
    return os.environ.get("EDGEKIT_DELEGATE") or None if needed else None


def load_with(name: str, format: str, data: bytes, setup: EngineSetup) -> Engine:  # noqa: A002
    """As `load_engine`, with a full setup. Raises EngineError also for a delegate that fails."""
    kind = ENGINES.get(name)
    if kind is None:
        raise EngineError(f"there is no engine '{name}'", do=f"Engines: {', '.join(ENGINES)}")
    if format not in kind.formats:
        raise EngineError(f"engine '{name}' runs {' and '.join(kind.formats)}, not {format}")
    if setup.delegate is not None and not kind.delegates:
        raise EngineError(f"engine '{name}' takes no delegate", where=setup.delegate)
    _check_numpy(kind)
    if kind.device == "gpu" and version_of_engine(name) is None:
        raise MissingExtraError(kind.extra, f"engine '{name}'")
    ours, _, engine = ((setup.kernels == "vulkan" and kind.vulkan) or kind.engine).partition(":")
    try:
        library, info = import_engine(name), expected_info(name, setup)
        if info.version == "unknown":
            info = replace(info, version=getattr(library, "__version__", info.version))
        make = getattr(importlib.import_module(f"edgekit_runtime.engines.{ours}"), engine)
        loaded: Engine = make(library, info, format, data, setup)
        if on_gpu(name, info.kernels):
            loaded.info = replace(info, gpu=gpu_name(info.kernels))
    except ImportError as error:
        if name not in available():
            raise MissingExtraError(kind.extra, f"engine '{name}'") from error
        raise EngineError(
            f"engine '{name}' is installed and cannot be imported: {error}",
            do=f"Run: pip install --force-reinstall {kind.distribution}",
        ) from error
    return loaded


def check_inputs(engine: Engine, inputs: Sequence[NDArray[Any]]) -> None:
    """Raise EngineError for undeclared shapes or dtypes, where the library checks none itself."""
    if len(inputs) != len(engine.inputs):
        raise EngineError(f"{len(inputs)} inputs were given, it has {len(engine.inputs)}", where=engine.info.name)
    for spec, array in zip(engine.inputs, inputs, strict=True):
        fits = array.ndim == len(spec.shape) and array.dtype == spec.dtype
        if not fits or any(want not in (-1, have) for want, have in zip(spec.shape, array.shape, strict=True)):
            raise EngineError(
                f"'{spec.name}' is {spec.dtype} {list(spec.shape)}, not {array.dtype} {list(array.shape)}",
                where=engine.info.name,
            )


def one_line(text: str) -> str:
    """A library's message on one line, at most 400 characters."""
    return " ".join(text.split())[:400]


def _check_numpy(kind: EngineKind) -> None:
    """Raise EngineError for an engine that needs NumPy 1; it would fail with a bare SystemError."""
    version = version_of(kind.distribution)
    if version is None or kind.numpy_for(version) == "numpy":
        return
    import numpy

    if int(numpy.__version__.split(".")[0]) >= 2:
        raise EngineError(
            f"{kind.distribution} {version} cannot make an interpreter with NumPy {numpy.__version__}",
            do="Run: pip install 'numpy<2'",
        )
