"""Parse a manifest, and check what its types alone do not say: references, sizes, figures.

    manifest = parse_manifest(data, where)          # BundleError names the first thing that is wrong
    check_answers(manifest, blobs, where)           # over the blobs: golden answers are numbers

Writer and reader make the same checks, so neither takes what the other refuses.
Names that may become part of a file's name are plain; every other text is short.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from edgekit_runtime.bundle import manifest as limits
from edgekit_runtime.bundle.header import align_up
from edgekit_runtime.bundle.manifest import (
    ENCRYPTED,
    ArtifactEntry,
    GoldenExample,
    Manifest,
    check_words,
    contract_digest,
)
from edgekit_runtime.bundle.trust_store import seconds_of
from edgekit_runtime.contract.detect import nonsense
from edgekit_runtime.contract.kinds import kind_of
from edgekit_runtime.contract.spec import Contract, TensorSpec
from edgekit_runtime.contract.text import MAX_TOKENIZER_BYTES
from edgekit_runtime.system.errors import BundleError
from edgekit_runtime.system.strict_json import canonical_bytes, from_json, parse_canonical

_DTYPES = "bool float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64"
DTYPE_BYTES = {name: np.dtype(name).itemsize for name in _DTYPES.split()}
"""What a tensor may hold -> bytes of one element."""

_Forms = Iterable[tuple[str, str, tuple[int, ...]]]


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Parse and check a manifest. Raises BundleError naming what is wrong and where."""
    value = parse_canonical(data, "the manifest", where)
    check_words(value, where)
    manifest = from_json(Manifest, value, f"{where}: manifest")
    check_manifest(manifest, where)
    if contract_digest(canonical_bytes(value["contract"])) != manifest.contract_digest:
        raise BundleError("contract_digest is not that of the contract", where=where, do="Build the bundle again")
    return manifest if manifest.compatible else replace(manifest, compatible=(manifest.target.profile,))


def check_manifest(manifest: Manifest, where: str) -> None:
    """Raises BundleError."""
    check = _Checks(where)
    _check_head(check, manifest)
    _check_blobs(check, manifest)
    _check_contract(check, manifest.contract)
    _check_text(check, manifest)
    _check_generation(check, manifest)
    sizes = {blob.sha256: blob.plain_bytes for blob in manifest.blobs}
    _check_artifacts(check, manifest, sizes)
    check(len(manifest.golden) <= limits.MAX_GOLDEN, "it has too many golden examples")
    entries = {entry.recipe: entry for entry in manifest.artifacts if entry.role != "batch"}
    for number, golden in enumerate(manifest.golden):
        _check_golden(check.of(f"golden example {number}"), manifest.contract, golden, entries, sizes)
    answered = {answer.recipe for golden in manifest.golden for answer in golden.answers}
    for entry in manifest.artifacts:
        check(entry.recipe in answered, f"no golden example proves {entry.recipe}")


def check_answers(manifest: Manifest, blobs: Mapping[str, bytes | memoryview], where: str) -> None:
    """Golden answers in floats must all be finite: nothing agrees with NaN. Raises BundleError.
    A blob that is not in `blobs` is encrypted, and its key is missing."""
    entries = {entry.recipe: entry for entry in manifest.artifacts if entry.role != "batch"}
    for number, golden in enumerate(manifest.golden):
        for answer in golden.answers:
            floats = {spec.name: spec.dtype for spec in entries[answer.recipe].outputs if spec.dtype.startswith("f")}
            for name, blob in answer.outputs.items():
                if name in floats and blob in blobs and not np.isfinite(np.frombuffer(blobs[blob], floats[name])).all():
                    what = f"golden example {number}: '{name}' of {answer.recipe} holds NaN or infinity"
                    do = "Build the bundle again, with examples that the model answers with finite numbers"
                    raise BundleError(what, where=where, do=do)


class _Checks:
    """`check(holds, what)` raises BundleError unless it holds."""

    def __init__(self, where: str, part: str = "") -> None:
        self._where, self._part = where, part

    def __call__(self, holds: bool, what: str) -> None:
        if not holds:
            raise BundleError(self._part + what, where=self._where, do="Build the bundle again")

    def of(self, part: str) -> _Checks:
        return _Checks(self._where, f"{part}: ")

    def name(self, value: str, what: str) -> None:
        self(limits.NAME.fullmatch(value) is not None, f"{value[:40]!r} is not a name of {what}")

    def text(self, value: str, what: str, most: int = limits.MAX_TEXT) -> None:
        self(0 < len(value) <= most, f"{what} has {len(value):,} characters, not 1 to {most:,}")

    def texts(self, values: Sequence[str], what: str, most: int, *, once: bool = True) -> None:
        """Names of something: none empty, none twice."""
        self(len(values) <= most, f"{len(values):,} {what} are more than {most:,}")
        self(all(0 < len(value) <= limits.MAX_NAME_TEXT for value in values), f"one of the {what} is empty or too long")
        self(not once or len(set(values)) == len(values), f"one of the {what} occurs twice")

    def digest(self, value: str, what: str) -> None:
        self(limits.SHA256.fullmatch(value) is not None, f"{what} is not a SHA-256 in lower-case hex")

    def forms(self, forms: _Forms) -> None:
        for name, dtype, shape in forms:
            self(dtype in DTYPE_BYTES, f"{dtype[:40]!r} is not a dtype")
            fits = len(shape) <= limits.MAX_RANK and all(n > 0 or n == -1 for n in shape)
            elements = math.prod(abs(n) for n in shape)
            self(fits and elements <= limits.MAX_TENSOR_ELEMENTS, f"{name[:40]!r} has an impossible shape")


def _check_head(check: _Checks, manifest: Manifest) -> None:
    check.name(manifest.name, "a bundle")
    version = manifest.version
    fits = limits.VERSION.fullmatch(version) is not None
    check(fits, f"{version[:40]!a} is not a version: 1 to 100 ASCII characters")
    check.digest(manifest.model_id, "model_id")
    check.digest(manifest.contract_digest, "contract_digest")
    target = manifest.target
    check.name(target.profile, "a profile")
    check.name(target.arch, "an architecture")
    check(1 <= target.threads <= limits.MAX_THREADS, f"{target.threads} is not a number of threads")
    check(target.budget_ms is None or target.budget_ms > 0, "the budget is not positive")
    _check_tools(check, manifest.tools)
    if manifest.licence is not None:
        check.text(manifest.licence, "the licence")
    check(manifest.rollout_seq is None or manifest.rollout_seq >= 0, "rollout_seq is negative")
    dates = {moment: seconds_of(moment) for moment in (manifest.not_before, manifest.expires) if moment is not None}
    for moment, at in dates.items():
        check(at is not None, f"{moment[:40]!r} is not a UTC date and time")
    first, last = dates.get(manifest.not_before or ""), dates.get(manifest.expires or "")
    check(first is None or last is None or first < last, "it expires before it becomes valid")
    check.texts(manifest.compatible, "profiles it may be installed on", limits.MAX_BOARDS)
    for board in manifest.compatible:
        check.name(board, "a profile")
    check.texts(manifest.requires, "features it requires", limits.MAX_OPS)
    memory = [figure for entry in manifest.artifacts for figure in (entry.memory_mb or {}).values()]
    check(all(figure > 0 for figure in memory), "a promised memory figure is not positive")
    scores = [n for entry in manifest.artifacts for n in entry.top_scores or ()]
    check(all(n >= 0 for n in scores), "a count of top scores is negative")
    if manifest.promise is not None:
        figures = (manifest.promise.p50_ms, manifest.promise.p99_ms, manifest.promise.peak_mb)
        check(all(figure is None or figure > 0 for figure in figures), "a promised figure is not positive")


def _check_tools(check: _Checks, tools: Mapping[str, str]) -> None:
    check.texts([*tools], "tools", limits.MAX_TOOLS)
    check.texts([*tools.values()], "versions of tools", limits.MAX_TOOLS, once=False)


def _check_blobs(check: _Checks, manifest: Manifest) -> None:
    """Blobs lie one after another from 0, each aligned, each once.
    All that are encrypted have one key, in a form that a reader can derive from."""
    count = len(manifest.blobs)
    check(count <= limits.MAX_BLOBS, f"{count:,} blobs are more than {limits.MAX_BLOBS:,}")
    cursor, seen = 0, set[str]()
    for blob in manifest.blobs:
        check.digest(blob.sha256, "the name of a blob")
        check(blob.offset == cursor and blob.size >= 0, f"blob {blob.sha256[:12]} is not at its place")
        check(blob.sha256 not in seen, f"blob {blob.sha256[:12]} is listed twice")
        seen.add(blob.sha256)
        cursor = align_up(cursor + blob.size)
        check(cursor <= limits.MAX_BUNDLE_BYTES, f"its blobs have more than {limits.MAX_BUNDLE_BYTES:,} bytes")
        if blob.cipher is not None:
            fits = limits.KEY_ID.fullmatch(blob.cipher.key) and limits.SHA256.fullmatch(blob.cipher.salt)
            check(bool(fits) and blob.plain_bytes >= 0, f"blob {blob.sha256[:12]} has an impossible cipher")
            check(blob.cipher.key == manifest.encrypted_with, "it is encrypted with more than one key")
    required = manifest.encrypted_with is None or ENCRYPTED in manifest.requires
    check(required, f"it is encrypted and does not require '{ENCRYPTED}'")


def _check_contract(check: _Checks, contract: Contract) -> None:
    for specs, what in ((contract.inputs, "inputs"), (contract.outputs, "outputs")):
        check(len(specs) > 0, f"the contract has no {what}")
        check.texts([spec.name for spec in specs], f"{what} of the contract", limits.MAX_TENSORS)
        check.forms((spec.name, spec.dtype, spec.shape) for spec in specs)
        for spec in specs:
            check(all(n > 0 for n in spec.shape), f"'{spec.name}' has an impossible shape")
    for spec in contract.inputs:
        for problem in kind_of(spec).problems(spec):
            check.of(f"'{spec.name}'")(False, problem)
    if contract.labels is not None:
        check(len(contract.labels) <= limits.MAX_LABELS, f"more than {limits.MAX_LABELS:,} labels")
        check(max(map(len, contract.labels), default=0) <= limits.MAX_TEXT, "a label is too long")
    pairs = contract.carried or ()  # of one form at both ends, once
    check(bool(pairs) == (contract.state == "explicit"), "the contract must say both that state is carried and which")
    inputs = {spec.name: spec.shape for spec in contract.inputs}
    outputs = {spec.name: spec.shape for spec in contract.outputs}
    for pair in pairs:
        shape = inputs.get(pair.input)
        check(shape is not None and shape == outputs.get(pair.output), f"'{pair.input}' cannot be carried")
        fits = pair.initial is None or len(pair.initial) in (1, math.prod(shape or ()))
        check(fits, f"'{pair.input}' has an initial state of another size")
    once = len({pair.input for pair in pairs}) == len({pair.output for pair in pairs}) == len(pairs)
    check(once, "a state is carried twice")
    used = contract.state == "none" or bool(contract.caller_inputs and contract.caller_outputs)
    check(used, "nothing but the state goes in or comes out")
    check(contract.hop is None or contract.hop > 0, "the hop is not a number of samples")
    wrong = nonsense(contract)
    check(wrong is None, f"{contract.task} {wrong and wrong.key}: {wrong and wrong.what}")


def _check_text(check: _Checks, manifest: Manifest) -> None:
    spec, sizes = manifest.contract.text, {blob.sha256: blob.plain_bytes for blob in manifest.blobs}
    _check_listed(check, [golden.text for golden in manifest.golden if golden.text is not None], sizes)
    check((spec is None) == (manifest.tokenizer is None), "it has a tokenizer or a text input, and not both")
    if spec is None or manifest.tokenizer is None:
        return
    _check_listed(check, [manifest.tokenizer], sizes)
    check(sizes[manifest.tokenizer] <= MAX_TOKENIZER_BYTES, "its tokenizer is too large")
    check(limits.TEXT_INPUT in manifest.requires, f"it takes texts and does not require '{limits.TEXT_INPUT}'")
    check.digest(spec.tokenizer, "the name of its tokenizer")
    inputs = {one.name: one for one in manifest.contract.inputs}
    check(set(spec.names) == set(inputs) and len(set(spec.names)) == len(spec.names), "a text fills other inputs")
    shapes = {inputs[name].shape for name in spec.names}
    check(len(shapes) == 1 and len(inputs[spec.ids].shape) == 1, "its inputs of a text are not rows of one length")
    check(all(inputs[name].dtype in ("int32", "int64") for name in spec.names), "an input of a text holds no ids")
    check(0 <= spec.pad < 1 << 31, "the padding is not a token id")


def _check_generation(check: _Checks, manifest: Manifest) -> None:
    contract = manifest.contract
    spec, generates = contract.generation, contract.task == "generation"
    formats = {entry.format == "gguf" for entry in manifest.artifacts}
    check(
        (spec is not None) == generates and formats <= {generates},
        "a language model is in GGUF, and its task generation",
    )
    if spec is None:
        return
    check(limits.GENERATION in manifest.requires, f"it generates text and does not require '{limits.GENERATION}'")
    check(0 < spec.context < 1 << 31, f"{spec.context} is not a number of tokens")
    sides = [(one.dtype, len(one.shape)) for one in contract.inputs]
    sides += [(one.dtype, len(one.shape)) for one in contract.outputs]
    check(sides == [("uint8", 1), ("int32", 1)] and contract.state == "none", "it has other inputs than a prompt")


def _check_artifacts(check: _Checks, manifest: Manifest, sizes: Mapping[str, int]) -> None:
    entries = manifest.artifacts
    check(len(entries) <= limits.MAX_ARTIFACTS, f"{len(entries)} artifacts are more than {limits.MAX_ARTIFACTS}")
    primary = sum(entry.role == "primary" for entry in entries)
    check(primary > 0, "no artifact has the role 'primary'")
    check(primary == 1, "several artifacts have the role 'primary'")
    check(sum(entry.role == "degraded" for entry in entries) <= 1, "several artifacts have the role 'degraded'")
    alone = [entry.recipe.casefold() for entry in entries if entry.role != "batch"]
    check(len(set(alone)) == len(alone), "two artifacts have the same recipe")
    inputs = {spec.name for spec in manifest.contract.inputs}
    outputs = {spec.name for spec in manifest.contract.outputs}
    for entry in entries:
        check.name(entry.recipe, "a recipe")
        of = check.of(entry.recipe)
        of.name(entry.precision, "a precision")
        _check_listed(of, [entry.blob], sizes)
        of(entry.bytes == sizes[entry.blob], "differs from its declared length")
        _check_tensors(of, entry.inputs, inputs, "inputs")
        _check_tensors(of, entry.outputs, outputs, "outputs")
        _check_tools(of, entry.tools)
        of.texts(entry.ops or (), "operators", limits.MAX_OPS)


def _check_tensors(check: _Checks, specs: Sequence[TensorSpec], names: Collection[str], what: str) -> None:
    check.texts([spec.name for spec in specs], what, limits.MAX_TENSORS)
    check({spec.name for spec in specs} == names, f"has other {what} than the contract")
    check.texts([spec.tensor for spec in specs], f"tensors of its {what}", limits.MAX_TENSORS, once=False)
    check.forms((spec.name, spec.dtype, spec.shape) for spec in specs)
    for spec in specs:
        check(len(spec.shape) > 0, f"'{spec.name}' has no batch axis")
        if spec.quantization is not None:
            check(spec.quantization.scale > 0, f"'{spec.name}' has a scale that is not positive")
            check(abs(spec.quantization.zero_point) < 1 << 31, f"'{spec.name}' has a zero-point out of range")


def _check_golden(
    check: _Checks,
    contract: Contract,
    golden: GoldenExample,
    entries: Mapping[str, ArtifactEntry],
    sizes: Mapping[str, int],
) -> None:
    given = {spec.name: spec for spec in contract.caller_inputs}
    check(golden.inputs.keys() == golden.dtypes.keys() == given.keys(), "a golden example lacks an input")
    sequence = golden.steps is not None
    check(sequence == (contract.state != "none"), "stateful models have sequences, and only they")
    frames = 1 if golden.steps is None else golden.steps
    check(0 < frames <= limits.MAX_GOLDEN_FRAMES, f"{frames} is not a number of frames")
    _check_listed(check, golden.inputs.values(), sizes)
    for name, blob in golden.inputs.items():
        dtype = golden.dtypes[name]
        check(dtype in DTYPE_BYTES, f"it has an unknown dtype, {dtype[:40]!r}")
        check(
            sizes[blob] == frames * math.prod(given[name].shape) * DTYPE_BYTES[dtype],
            f"'{name}' differs in size from its input",
        )
    recipes = [answer.recipe for answer in golden.answers]
    check(len(set(recipes)) == len(recipes), "an artifact answers it twice")
    names = {spec.name for spec in contract.caller_outputs}
    for answer in golden.answers:
        check(answer.recipe in entries, f"it has an answer of {answer.recipe[:40]!r}, which does not exist")
        check(answer.outputs.keys() == names, f"{answer.recipe} does not answer the contract's outputs")
        _check_listed(check, answer.outputs.values(), sizes)
        check.text(answer.engine, "an engine", limits.MAX_NAME_TEXT)
        check.text(answer.engine_version, "an engine's version", limits.MAX_NAME_TEXT)
        for spec in entries[answer.recipe].outputs:
            if spec.name in answer.outputs:  # raw: as large as the file's tensor without its batch axis
                each = frames * math.prod(abs(side) for side in spec.shape[1:]) * DTYPE_BYTES[spec.dtype]
                size, free = sizes[answer.outputs[spec.name]], -1 in spec.shape[1:]
                fits = size > 0 and size % each == 0 if free else size == each
                check(fits, f"'{spec.name}' of {answer.recipe} differs in size from its tensor")
        most = limits.MAX_STEPS if golden.steps is None else limits.MAX_SEQUENCE_STEPS
        check(0 <= answer.tolerance.steps <= most, f"a tolerance of {answer.tolerance.steps:,} steps proves nothing")
        cosine = answer.tolerance.cosine
        check(limits.MIN_COSINE <= cosine <= 1, f"a tolerance of cosine {cosine:g} proves nothing")


def _check_listed(check: _Checks, wanted: Iterable[str], sizes: Mapping[str, int]) -> None:
    for blob in wanted:
        check(blob in sizes, f"blob {blob[:12]!r} is named but not listed")
