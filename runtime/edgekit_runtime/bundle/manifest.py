"""The manifest of an .ekb bundle: contents, promises, golden answers, and who may open it.

    check_reader("0.2.0", ("encrypted-blobs",), where)    # BundleError if this reader is too old, or lacks a feature

Canonical JSON (RFC 8785) of `Manifest`. Blobs are named by their SHA-256.

Rules:
- `format` changes only when an older reader could not find its way through the file;
- `min_runtime` refuses readers too old to give the right answers, `requires` those that lack a feature;
- a reader ignores any other key that it does not know: it changes no answer;
- the MAX_ caps hold for writers and readers. They leave room for real models (ImageNet-21k has 21,841 labels) and
  bound what a small board must hold.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from typing import Any, Literal

from edgekit_runtime.bundle.cipher import plain_size
from edgekit_runtime.contract.spec import Contract, TensorSpec
from edgekit_runtime.system.errors import BundleError
from edgekit_runtime.system.records import field, record
from edgekit_runtime.system.strict_json import to_json

MAX_TEXT = 1_000
"""Characters of a licence or a label."""
MAX_NAME_TEXT = 500
"""Characters of a tensor's name, a version, an operator: exporters write long names."""
MAX_BUNDLE_BYTES = 2 << 30
MAX_BLOBS = 4_096
MAX_ARTIFACTS = 64
MAX_TENSORS = 256
MAX_RANK = 8
MAX_TENSOR_ELEMENTS = 1 << 28
MAX_THREADS = 1_024
MAX_GOLDEN = 64
MAX_GOLDEN_FRAMES = 100_000
MAX_LABELS = 100_000
MAX_BOARDS = 256
MAX_OPS = 1_024
MAX_TOOLS = 256
MAX_STEPS = 1_000
"""Of a tolerance, for the engine that made the answers: a tenth of the largest value, for floats."""
MAX_SEQUENCE_STEPS = 200_000
"""The same of a sequence: rounding grows without bound in a chaotic network, so only the cosine counts."""
MIN_COSINE = 0.5
"""Of a tolerance, for any other engine."""
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
"""Of a bundle, a profile, a recipe: it becomes part of a file's name."""
VERSION = re.compile(r"[!-~]([ -~]{0,98}[!-~])?")
"""Of a model: one line of ASCII, shown wherever a bundle is."""
SHA256 = re.compile(r"[0-9a-f]{64}")
KEY_ID = re.compile(r"[0-9a-f]{32}")
"""Of a secret key: see `cipher.key_id`."""
RUNTIME_VERSION = "0.1.0"
"""Of this reader: compared with `min_runtime`."""
ENCRYPTED = "encrypted-blobs"
"""The feature that an encrypted bundle requires."""
FORMAT_VERSION = 1
FIRST_RELEASE = "0.1.0"
"""Default of `min_runtime`."""
NCNN = "ncnn-artifacts"
TEXT_INPUT = "text-input"
"""The feature that a bundle with a tokenizer requires."""
GENERATION = "text-generation"
"""The feature that a bundle with a language model requires."""
FEATURES = frozenset({ENCRYPTED, NCNN, TEXT_INPUT, GENERATION})
"""Features that this reader has."""
_RELEASE = re.compile(r"(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})")
Role = Literal["primary", "alternate", "batch", "degraded"]


@record(frozen=True)
class Cipher:
    """How a blob was encrypted: see `bundle.cipher`.

    key: id of the key, never the key.
    salt: 32 bytes in hex; with the key it gives the blob's own key and nonce."""

    name: Literal["AES-256-GCM"]
    key: str
    salt: str


@record(frozen=True)
class BlobEntry:
    """sha256, size: of the bytes as they lie in the file; hex, bytes.
    offset: bytes from the start of the blob area, a multiple of 64.
    cipher: None if the blob is not encrypted."""

    sha256: str
    offset: int
    size: int
    cipher: Cipher | None = None

    @property
    def plain_bytes(self) -> int:
        """Size after decryption."""
        return self.size if self.cipher is None else plain_size(self.size)


@record(frozen=True)
class ArtifactEntry:
    """One model file.

    blob: its SHA-256.
    inputs, outputs: in the engine's order.
    fidelity, estimate: the build's reports, as printed by `--json`.
    ops: the operators that the file may use, None if they are not listed.
    settings: the recipe as data.
    top_scores: of a classifier, best scores of its evaluation set counted in ten equal parts of 0 to 1."""

    role: Role
    recipe: str
    format: Literal["tflite", "onnx", "ncnn", "gguf"]
    precision: str
    blob: str
    bytes: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    tools: dict[str, str] = field(default_factory=dict)
    fidelity: dict[str, Any] | None = None
    estimate: dict[str, Any] | None = None
    ops: tuple[str, ...] | None = None
    settings: dict[str, Any] | None = None
    memory_mb: dict[str, float] | None = None
    top_scores: tuple[int, ...] | None = None


@record(frozen=True)
class Promise:
    """Promised on the board: ms of one inference, peak MB (1e6 bytes); None: no promise."""

    p50_ms: float | None = None
    p99_ms: float | None = None
    peak_mb: float | None = None


@record(frozen=True)
class Target:
    """What the runtime must know of the board; a bundle carries no profile.

    threads: the engine's default."""

    profile: str
    arch: str
    threads: int
    budget_ms: float | None = None


@record(frozen=True)
class Tolerance:
    """How far a replayed output may lie from its golden one, compared dequantized.

    steps: with the engine and version that made it, in quantization steps (int8), or in 1e-4 of the golden's largest
        magnitude (float).
    cosine: least similarity with any other engine or version."""

    steps: int
    cosine: float


@record(frozen=True)
class GoldenOutputs:
    """One artifact's answer on the workstation. outputs: name -> blob (raw tensor, C order)."""

    recipe: str
    engine: str
    engine_version: str
    outputs: dict[str, str]
    tolerance: Tolerance


@record(frozen=True)
class GoldenExample:
    """One replayable example.

    inputs: contract name -> blob of the canonical item.
    dtypes: contract name -> NumPy name.
    steps: None for a stateless model, else the number of frames in each blob of inputs and answers, replayed in order
        from a fresh state.
    text: blob of the text that gives these inputs, UTF-8; None if they were given as arrays."""

    inputs: dict[str, str]
    dtypes: dict[str, str]
    answers: tuple[GoldenOutputs, ...]
    steps: int | None = None
    text: str | None = None


@record(frozen=True)
class Manifest:
    """model_id: SHA-256 of the source model's file.
    contract_digest: SHA-256 of the contract's canonical JSON.
    min_runtime: oldest runtime that may open it.
    licence: of the model.
    rollout_seq: only a bundle with a higher one replaces an installed one.
    not_before, expires: RFC 3339 UTC, "2027-01-31T00:00:00Z".
    compatible: profiles it may be installed on; never empty after parsing.
    requires: features that a reader must have.
    tokenizer: blob of the tokenizer.json that `contract.text` names."""

    format: int
    name: str
    version: str
    model_id: str
    contract: Contract
    contract_digest: str
    target: Target
    artifacts: tuple[ArtifactEntry, ...]
    golden: tuple[GoldenExample, ...]
    blobs: tuple[BlobEntry, ...]
    tools: dict[str, str] = field(default_factory=dict)
    min_runtime: str = FIRST_RELEASE
    licence: str | None = None
    rollout_seq: int | None = None
    not_before: str | None = None
    expires: str | None = None
    compatible: tuple[str, ...] = ()
    promise: Promise | None = None
    requires: tuple[str, ...] = ()
    tokenizer: str | None = None

    @property
    def title(self) -> str:
        """Name, version and board, for a person."""
        return f"{self.name} version {self.version} for {self.target.profile}"

    @property
    def encrypted_with(self) -> str | None:
        """Id of the key of its encrypted blobs, None without any."""
        return next((blob.cipher.key for blob in self.blobs if blob.cipher is not None), None)

    def as_json(self) -> dict[str, Any]:
        value: dict[str, Any] = to_json(self)
        return value


def contract_digest(canonical: bytes) -> str:
    return hashlib.sha256(canonical).hexdigest()


def release(version: str) -> tuple[int, int, int] | None:
    """(major, minor, patch), or None if it is not such a version."""
    found = _RELEASE.fullmatch(version)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def check_reader(min_runtime: str, requires: Collection[str], where: str, *, version: str = RUNTIME_VERSION) -> None:
    """Raises BundleError (bundle-newer) unless a reader of `version` may open such a bundle."""
    needed, own = release(min_runtime), release(version)
    if needed is None:
        raise BundleError(f"min_runtime {min_runtime!r:.40} is not a version", where=where, do="Build the bundle again")
    if own is None:
        raise ValueError(f"{version!r} is not a version")
    what = ""
    if own < needed:
        what = f"the bundle needs edgekit {min_runtime} or newer, and this is {version}"
    elif unknown := sorted(set(requires) - FEATURES):
        what = f"the bundle needs features that this reader lacks: {', '.join(unknown):.200}"
    if what:
        raise BundleError(what, where=where, do="Upgrade edgekit-deploy on this machine", code="bundle-newer")


def check_words(value: object, where: str) -> None:
    """`check_reader` before the fields are parsed, so that a newer bundle is called newer.
    If these three have another type, parsing the fields says so. Raises BundleError."""
    if not isinstance(value, dict):
        raise BundleError("the manifest is not an object", where=where, do="Build the bundle again")
    version, needed, features = value.get("format"), value.get("min_runtime", FIRST_RELEASE), value.get("requires", [])
    if type(version) is not int or version < FORMAT_VERSION:
        raise BundleError(f"format {version!r:.40} is not a bundle format", where=where, do="Build the bundle again")
    if version > FORMAT_VERSION:
        what = f"bundle format {version!r} is not {FORMAT_VERSION}, the one this runtime reads"
        do = "Upgrade edgekit-deploy, or build the bundle again"
        raise BundleError(what, where=where, do=do, code="bundle-newer")
    if isinstance(needed, str):
        named = isinstance(features, list) and all(isinstance(one, str) for one in features)
        fits = named and all(0 < len(one) <= MAX_NAME_TEXT for one in features)
        check_reader(needed, features if fits and len(set(features)) == len(features) <= MAX_OPS else (), where)
