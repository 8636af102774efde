"""The options of `open_bundle`, checked before anything is loaded.

    CacheOptions(memory_mb=16, disk="answers.db")
    ModelLimits(queue=64, hang_s=0.5)

Rules:
- every check is in one table, `_RULES`; a failure is one OptionError, which names the option and its owner;
- conditions of the bundle or this machine (an engine that is not installed, a broker that is away) are not checked
  here.
"""

from __future__ import annotations

import math
import numbers
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from edgekit_runtime.policy.budget import PRESETS_MS, Use
from edgekit_runtime.system.errors import OptionError
from edgekit_runtime.system.memory import MemoryBudget
from edgekit_runtime.system.watchdog import MOST_LIMIT_S

if TYPE_CHECKING:
    from edgekit_runtime.bundle.secrets import SecretArgument
    from edgekit_runtime.bundle.trust_finding import Trust
    from edgekit_runtime.cache.similar import Semantic
    from edgekit_runtime.loading.candidates import Pin

EngineName = Literal[
    "litert",
    "tflite-runtime",
    "onnxruntime",
    "openvino",
    "ncnn",
    "llama.cpp",
    "tensorrt",
    "tensorrt-rtx",
    "onnxruntime-cuda",
    "torch-cuda",
    "gpu",
]
MAX_THREADS = 256
_DISK_MB = 256.0


@dataclass(frozen=True)
class CacheOptions:
    """Which answers to cache, and where. Raises OptionError.

    memory_mb: size of the memory cache, MiB; 0 for none.
    ttl_s: seconds for which an answer is valid, in every tier; None for no limit, or a day in a shared cache.
    disk: file that keeps answers across restarts: hashes and outputs, never inputs; None for none.
    disk_mb: largest size of that file, MiB. Without `disk` it causes a UserWarning.
    shared: URL of a Redis or Valkey shared by several hosts, redis:// or rediss://; not with `disk`.
    shared_secret: source of the key that encrypts answers in `shared`, as for `open_bundle(secret=)`; None for the key
    of an encrypted bundle.
    similar: largest distance, in grey levels, at which two pictures share an answer; None for none.
    semantic: cache by the vectors of the inputs; None for none.
    """

    memory_mb: float = 64.0
    ttl_s: float | None = None
    disk: str | os.PathLike[str] | None = None
    disk_mb: float = _DISK_MB
    shared: str | None = None
    shared_secret: str | os.PathLike[str] | None = None
    similar: float | None = None
    semantic: Semantic | None = None

    def __post_init__(self) -> None:
        _check(self, "CacheOptions")
        if self.shared is not None and self.disk is not None:
            raise OptionError("shared", "cannot be combined with disk: only one tier backs memory", "CacheOptions")
        if self.disk is None and self.disk_mb != _DISK_MB:
            warnings.warn("CacheOptions: disk_mb has no effect without disk=", stacklevel=3)
        if self.shared_secret is not None and self.shared is None:
            raise OptionError("shared_secret", "requires shared=", "CacheOptions")

    def shared_key(self) -> bytes | None:
        """Raises SecretError."""
        if self.shared_secret is None:
            return None
        from edgekit_runtime.bundle.secrets import load_secret

        return load_secret(os.fspath(self.shared_secret)).key()

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_mb * 2**20)


@dataclass(frozen=True)
class ModelLimits:
    """Resource limits of a model. Raises OptionError.

    queue: largest number of waiting requests; the next raises QueueFull.
    batching: whether waiting requests may be batched if that is faster; None for yes, unless EDGEKIT_BATCH=off.
    hang_s: seconds after which an inference counts as hung; None for 10, or 20 times the slowest if that is more.
    memory: a memory budget shared by several models of the process; None for the system's limits.
    degraded: also load the bundle's degraded artifact, which answers requests that would be late.
    kv_mb: size of a language model's KV cache, for all dialogues together, MB (1e6 bytes); None for 4096 tokens, or
    the model's context length if that is less.
    """

    queue: int = 1024
    batching: bool | None = None
    hang_s: float | None = None
    memory: MemoryBudget | None = None
    degraded: bool = False
    kv_mb: float | None = None

    def __post_init__(self) -> None:
        _check(self, "ModelLimits")

    @property
    def may_batch(self) -> bool:
        return os.environ.get("EDGEKIT_BATCH") != "off" if self.batching is None else self.batching


@dataclass(frozen=True)
class Host:
    """A fallback server of the Open Inference Protocol, or of OpenAI's. Raises OptionError.

        Host("https://gpu-box:8443", model="net", inputs={"image": "input_1"}, token="env:GPU_TOKEN", ca="ca.pem")
        Host("http://gpu-box:8000", protocol="openai")

    url: http(s)://name:port.
    model: the model's name on the server; None for the bundle's name.
    version: the model's version on the server; None for the one that passes the golden example.
    inputs, outputs: contract name -> the server's name, if different.
    token: source of the bearer token, `env:NAME` or `file:PATH`; None for none.
    ca: PEM file of the authorities that may sign the server's certificate; None for the system's.
    certificate: PEM file of this device's certificate and its private key; None for none.
    protocol: "openai" for a server of chat completions (vLLM, llama.cpp), which generates text.
    """

    url: str
    model: str | None = None
    version: str | None = None
    inputs: Mapping[str, str] = field(default_factory=dict, hash=False)
    outputs: Mapping[str, str] = field(default_factory=dict, hash=False)
    token: str | None = None
    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    protocol: Literal["oip", "openai"] = "oip"

    def __post_init__(self) -> None:
        token = self.token
        if token is not None and not (isinstance(token, str) and re.fullmatch(r"(env|file):[^\0]+", token)):
            raise OptionError("token", "must be 'env:NAME' or 'file:PATH', not the token itself", "Host")
        _check(self, "Host")


@dataclass(frozen=True)
class Options:
    """The arguments of `open_bundle`, which documents them. Raises OptionError."""

    trust: Trust = ()
    allow_unsigned: bool = False
    secret: SecretArgument = None
    engine: str | None = None
    threads: int | None = None
    delegate: str | os.PathLike[str] | None = None
    pin: Pin | None = None
    isolate: bool = False
    budget_ms: float | None = None
    use: Use | None = None
    hosts: Sequence[str | Host] | None = None
    cache: CacheOptions = field(default_factory=CacheOptions)
    limits: ModelLimits = field(default_factory=ModelLimits)

    def __post_init__(self) -> None:
        _check(self, "open_bundle")

    @property
    def default_budget_ms(self) -> float | None:
        """Of a request that names none; None for no limit."""
        return PRESETS_MS[self.use] if self.budget_ms is None and self.use is not None else self.budget_ms


def check_number(name: str, value: object) -> None:
    """Raise OptionError for anything but a number that a float holds."""
    if not _is_number(value):
        raise OptionError(name, f"must be a number, not {value!r:.40}")


def check_path(name: str, value: object, owner: str = "") -> None:
    """Raise OptionError for anything but the path of a file."""
    if not _is_path(value):
        raise OptionError(name, f"must be the path of a file, not {value!r:.40}", owner)


def _is_number(value: object, least: float = -math.inf, *, above: float = -math.inf, most: float = math.inf) -> bool:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        return least <= float(value) <= most and (above == -math.inf or float(value) > above)
    except OverflowError:
        return False


def _is_count(value: object, most: float = math.inf) -> bool:
    return isinstance(value, numbers.Integral) and _is_number(value, 1, most=most)


def _is_path(value: object) -> bool:
    if not isinstance(value, (str, os.PathLike)):
        return False
    path = os.fspath(value)
    return isinstance(path, str) and "\0" not in path and path not in ("", ".")  # Path("") is "."


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview))


def _is_names(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    return all(map(_is_text, (*value, *value.values()))) and len(set(value.values())) == len(value)


def _is_trust(value: object) -> bool:
    if _is_path(value) or (_is_list(value) and all(map(_is_path, value))):
        return True
    from edgekit_runtime.bundle.trust_store import TrustStore

    return isinstance(value, TrustStore)


def _is_finite(value: object, least: float) -> bool:
    return _is_number(value, least) and value != math.inf


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


_SHARED = ("redis://", "rediss://", "unix://")
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "memory_mb": (lambda mb: _is_finite(mb, 0), "a number of MiB, 0 or more"),
    "disk_mb": (lambda mb: _is_finite(mb, 1), "a number of MiB, 1 or more"),
    "ttl_s": (lambda s: _is_number(s, above=0), "a number of seconds above 0"),
    "shared": (lambda url: isinstance(url, str) and url.startswith(_SHARED), "a URL: redis://, rediss:// or unix://"),
    "shared_secret": (_is_path, "a key source: file:PATH, env:NAME or cmd:COMMAND"),
    "disk": (_is_path, "the path of a file"),
    "similar": (lambda distance: _is_finite(distance, 0), "a number of grey levels, 0 or more"),
    "semantic": (lambda kept: hasattr(kept, "fresh"), "a Semantic"),
    "queue": (_is_count, "a whole number, at least 1"),
    "batching": (_is_flag, "True or False"),
    "kv_mb": (lambda mb: _is_number(mb, above=0) and mb != math.inf, "a number of MB above 0"),
    "hang_s": (
        lambda s: _is_number(s, above=0, most=MOST_LIMIT_S),
        f"a number of seconds above 0 and at most {MOST_LIMIT_S:.0f} (a day)",
    ),
    "memory": (lambda budget: isinstance(budget, MemoryBudget), "a MemoryBudget"),
    "degraded": (_is_flag, "True or False"),
    "trust": (_is_trust, "a path or several"),
    "allow_unsigned": (_is_flag, "True or False"),
    "engine": (_is_text, "the name of an engine"),
    "threads": (lambda count: _is_count(count, MAX_THREADS), f"a whole number from 1 to {MAX_THREADS}"),
    "delegate": (lambda path: path == "" or _is_path(path), "the path of a library"),
    "pin": (lambda pin: pin == "primary", "'primary'"),
    "isolate": (_is_flag, "True or False"),
    "budget_ms": (lambda ms: _is_number(ms, above=0), "a number of milliseconds above 0"),
    "use": (lambda use: isinstance(use, str) and use in PRESETS_MS, f"one of {', '.join(PRESETS_MS)}"),
    "hosts": (
        lambda hosts: _is_list(hosts) and all(isinstance(host, (str, Host)) for host in hosts),
        "a list of URLs and Hosts",
    ),
    "url": (_is_text, "a URL"),
    "model": (lambda name: _is_text(name) and name != "", "the name of a model"),
    "version": (lambda version: _is_text(version) and version != "", "a version, as text"),
    "inputs": (_is_names, "a mapping from contract names to the server's"),
    "outputs": (_is_names, "a mapping from contract names to the server's"),
    "ca": (_is_path, "the path of a file"),
    "certificate": (_is_path, "the path of a file"),
    "protocol": (lambda name: name in ("oip", "openai"), "'oip' or 'openai'"),
    "cache": (lambda cache: isinstance(cache, CacheOptions), "CacheOptions, True or False"),
    "limits": (lambda limits: isinstance(limits, ModelLimits), "ModelLimits"),
}
"""Field -> its check, and what a value must be. None passes if it is the field's default."""


def _check(options: CacheOptions | Host | ModelLimits | Options, owner: str) -> None:
    for one in fields(options):
        value = getattr(options, one.name)
        if one.name not in _RULES or (value is None and one.default is None):
            continue
        fits, must = _RULES[one.name]
        if not fits(value):
            raise OptionError(one.name, f"must be {must}, not {value!r:.40}", owner)
