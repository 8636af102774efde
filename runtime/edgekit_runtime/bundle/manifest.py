"""The manifest of an .ekb bundle.
What is inside, what it promises, the answers it must give, and which reader opens it.

    check_reader("0.2.0", ("encrypted-blobs",), where)    # BundleError where this reader is too old, or lacks a feature

Canonical JSON (RFC 8785) of the `Manifest` below. Blobs are named by their SHA-256; everything else refers to them by
it.

Rules:
- `format` is another number only where an older reader could not find its way through the file;
- `min_runtime` refuses readers that are too old to give the right answers, `requires` those that lack one feature;
- any other key that a reader does not know changes no answer, and is ignored.

How much of everything a manifest may hold.
What a writer refuses to write, a reader refuses to read.

The figures leave room for what models have (ImageNet-21k has 21,841 labels of at most 300 bytes) and no more than a
small board can hold while it reads.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal

from edgekit_runtime.bundle.cipher import plain_size
from edgekit_runtime.contract.spec import Contract, TensorSpec
from edgekit_runtime.system.errors import BundleError
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
"""The same of a sequence: in a chaotic network rounding grows to anything, and the cosine alone says something."""

MIN_COSINE = 0.5
"""Of a tolerance, for any other engine: less is not the same answer."""

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
VERSION = re.compile(r"[!-~]([ -~]{0,98}[!-~])?")
"""Of a model: one line of ASCII, because it is shown wherever a bundle is."""
"""Of a bundle, a profile, a recipe: what becomes part of a file's name somewhere."""

SHA256 = re.compile(r"[0-9a-f]{64}")

KEY_ID = re.compile(r"[0-9a-f]{32}")
"""Of a secret key: see `cipher.key_id`."""


RUNTIME_VERSION = "0.1.0"
"""Of this reader: what `min_runtime` is compared with."""
ENCRYPTED = "encrypted-blobs"
"""What an encrypted bundle requires of its reader."""
FORMAT_VERSION = 1
"""The `format` that this reader reads, and the writer writes."""
FIRST_RELEASE = "0.1.0"
"""Where a manifest names no `min_runtime`."""
FEATURES = frozenset({ENCRYPTED})
"""What a manifest may require of this reader."""
_RELEASE = re.compile(r"(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})")
Role = Literal["primary", "alternate", "batch", "degraded"]


@dataclass(frozen=True)
class Cipher:
    """How a blob was encrypted: see `bundle.cipher`.

    name: the algorithm.
    key: the id of the key, never the key.
    salt: 32 bytes in hex; with the key it gives the blob's own key and nonce.
    """

    name: Literal["AES-256-GCM"]
    key: str
    salt: str


@dataclass(frozen=True)
class BlobEntry:
    """sha256: lower-case hex.
    offset: bytes from the start of the blob area, a multiple of 64.
    size: bytes.

    sha256 and size are of the bytes as they lie in the file; cipher: None where these are the bytes that are used.
    """

    sha256: str
    offset: int
    size: int
    cipher: Cipher | None = None

    @property
    def plain_bytes(self) -> int:
        """Size of what is used."""
        return self.size if self.cipher is None else plain_size(self.size)


@dataclass(frozen=True)
class ArtifactEntry:
    """One model file. recipe, format, precision: what made it. blob: its bytes.

    inputs, outputs: in the engine's order. fidelity, estimate: the reports of the build, as printed by `--json`.
    ops: the operators that the file may use, None where they are not listed. settings: the recipe as data.
    top_scores: of a classifier, how many best scores of its evaluation set were in each of ten equal parts of 0 to 1.
    """

    role: Role
    recipe: str
    format: Literal["tflite", "onnx"]
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


@dataclass(frozen=True)
class Promise:
    """What the board is held to: milliseconds of one inference, MB (1e6 bytes) at the peak.

    None: nothing is promised.
    """

    p50_ms: float | None = None
    p99_ms: float | None = None
    peak_mb: float | None = None


@dataclass(frozen=True)
class Target:
    """What the runtime must know of the board: it carries no profile.

    threads: what the engine gets by default.
    """

    profile: str
    arch: str
    threads: int
    budget_ms: float | None = None


@dataclass(frozen=True)
class Tolerance:
    """How far a replayed output may lie from its golden one, measured on dequantized values.

    steps: with the engine and version that made it, in quantization steps (int8 outputs) or in 1e-4 of the golden's
    largest magnitude (float outputs). cosine: the least similarity with any other engine or version.
    """

    steps: int
    cosine: float


@dataclass(frozen=True)
class GoldenOutputs:
    """What one artifact answered on the workstation.

    outputs: contract name -> blob (raw engine tensor, C order).
    """

    recipe: str
    engine: str
    engine_version: str
    outputs: dict[str, str]
    tolerance: Tolerance


@dataclass(frozen=True)
class GoldenExample:
    """One replayable example.

    inputs: contract name -> blob of the canonical item; dtypes: contract name -> NumPy name.
    steps: None for a model without state. Else the example is a sequence of so many frames, one after another in each
    blob, of inputs and of answers alike; replayed in order from a fresh state, which is in neither.
    """

    inputs: dict[str, str]
    dtypes: dict[str, str]
    answers: tuple[GoldenOutputs, ...]
    steps: int | None = None


@dataclass(frozen=True)
class Manifest:
    """model_id: SHA-256 of the source model's file.
    contract_digest: SHA-256 of the contract's canonical JSON.

    min_runtime: the first runtime that may open it. rollout_seq: of what is installed, only a higher one replaces it.
    not_before, expires: RFC 3339 UTC, "2027-01-31T00:00:00Z". compatible: the profiles it may be installed on; after
    parsing never empty. requires: features that a reader must know, or refuse. licence: of the model.
    """

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

    @property
    def title(self) -> str:
        """For a person: what it is, and for which board."""
        return f"{self.name} version {self.version} for {self.target.profile}"

    @property
    def encrypted_with(self) -> str | None:
        """Id of the key of its encrypted blobs; None where none is encrypted."""
        return next((blob.cipher.key for blob in self.blobs if blob.cipher is not None), None)

    def as_json(self) -> dict[str, Any]:
        value: dict[str, Any] = to_json(self)
        return value


def contract_digest(canonical: bytes) -> str:
    return hashlib.sha256(canonical).hexdigest()


def release(version: str) -> tuple[int, int, int] | None:
    """(major, minor, patch), or None for what is no such version."""
    found = _RELEASE.fullmatch(version)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def check_reader(min_runtime: str, requires: Collection[str], where: str, *, version: str = RUNTIME_VERSION) -> None:
    """Check that a reader of `version` may open a bundle that asks for these.
    Raises BundleError (bundle-newer)."""
    needed, own = release(min_runtime), release(version)
    if needed is None:
        raise BundleError(f"min_runtime {min_runtime!r:.40} is no version", where=where, do="Build the bundle again")
    if own is None:
        raise ValueError(f"{version!r} is no version")
    if own < needed:
        raise BundleError(
            f"the bundle needs edgekit {min_runtime} or newer, and this is {version}",
            where=where,
            do="Upgrade edgekit-deploy on this machine",
            code="bundle-newer",
        )
    unknown = sorted(set(requires) - FEATURES)
    if unknown:
        raise BundleError(
            f"the bundle needs what this reader does not know: {', '.join(unknown):.200}",
            where=where,
            do="Upgrade edgekit-deploy on this machine",
            code="bundle-newer",
        )


def check_words(value: object, where: str) -> None:
    """`check_reader` before a manifest's fields are parsed.
    A newer bundle is called newer, whatever else is new in it. Where these three are no words of the format, the types
    of the fields say so.
    Raises BundleError."""
    if not isinstance(value, dict):
        raise BundleError("the manifest is no object", where=where, do="Build the bundle again")
    version, needed, features = value.get("format"), value.get("min_runtime", FIRST_RELEASE), value.get("requires", [])
    if type(version) is not int or version < FORMAT_VERSION:
        raise BundleError(f"format {version!r:.40} is none", where=where, do="Build the bundle again")
    if version > FORMAT_VERSION:
        raise BundleError(
            f"bundle format {version!r} is not {FORMAT_VERSION}, the one this runtime reads",
            where=where,
            do="Upgrade edgekit-deploy, or build the bundle again",
            code="bundle-newer",
        )
    if isinstance(needed, str):
        named = isinstance(features, list) and all(isinstance(one, str) for one in features)
        fits = named and all(0 < len(one) <= MAX_NAME_TEXT for one in features)
        check_reader(needed, features if fits and len(set(features)) == len(features) <= MAX_OPS else (), where)
