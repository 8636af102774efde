"""Write a bundle's model with a program specialised to its contract, for one target.

    made = export(bundle, Path("net"), "node")
    made.files                             # net/model.onnx, net/predict.js, net/golden.bin, ...

Rules:
- without a recipe it is the first artifact that the target can express; if there is none, an error says why of each;
- every folder has the model file and `contract.json`; with labels `labels.txt`, a line each; of texts `tokenizer.json`;
- the program runs the bundle's golden examples and says `ok`, or what differs;
- an encrypted artifact is written in clear; the folder is new or empty, and written whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from edgekit.packaging.output_errors import OutputError
from edgekit.shipping.folder import draft, put
from edgekit.shipping.programs import c, javascript, mediapipe, numbers, python
from edgekit.shipping.programs.artifact import ExportedArtifact, Program, TargetError
from edgekit_runtime.bundle.manifest import ArtifactEntry
from edgekit_runtime.bundle.reader import Bundle
from edgekit_runtime.system.strict_json import json_text


@dataclass(frozen=True)
class ExportTarget:
    """formats: of artifacts that it takes.
    refusals: what it cannot express, a phrase each.
    float_sides: whether it takes TFLite with float32 sides alone.
    measure: runs the folder's program beside the artifact; what it finds is `export.json`."""

    write: Callable[[ExportedArtifact], Program]
    formats: tuple[str, ...] = ("tflite", "onnx")
    refusals: Callable[[ExportedArtifact], Iterator[str]] = field(default=lambda _: iter(()))
    float_sides: bool = False
    measure: Callable[[ExportedArtifact, Path, Sequence[str]], dict[str, Any] | None] | None = None


TARGETS: dict[str, ExportTarget] = {
    "files": ExportTarget(python.write, ("tflite", "onnx", "ncnn")),
    "web": ExportTarget(partial(javascript.write, runs_in="web"), refusals=javascript.web_refusals, float_sides=True),
    "node": ExportTarget(partial(javascript.write, runs_in="node"), ("onnx",), numbers.refusals),
    "c": ExportTarget(c.write, ("onnx",), numbers.refusals),
    "mediapipe": ExportTarget(mediapipe.write, ("tflite",), mediapipe.refusals, True, mediapipe.measure),
}


@dataclass(frozen=True)
class ExportedProgram:
    """recipe: of the artifact.
    measured: what the target's engine answers; None if it is not installed, or the target is not measured.
    packages, start: see `Program`; the command lines run in the folder."""

    recipe: str
    files: tuple[Path, ...]
    packages: tuple[str, ...]
    start: tuple[str, ...]
    measured: dict[str, Any] | None = None


def export(
    bundle: Bundle, folder: Path, target: str = "files", recipe: str | None = None, pictures: Sequence[str] = ()
) -> ExportedProgram:
    """Write one artifact and its program into a folder that is new or empty.

    pictures: files on which a target that is measured is.
    Raises TargetError, OutputError, and BundleError for an unknown recipe.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise OutputError("is not an empty directory", where=str(folder), do="Name a new one with -o")
    artifact = _choose(bundle, target, recipe)
    program = TARGETS[target].write(artifact)
    contract = artifact.contract
    files: dict[str, bytes] = {**artifact.model_files(), "contract.json": json_text(contract).encode()}
    if contract.labels is not None:
        files["labels.txt"] = "".join(f"{label}\n" for label in contract.labels).encode()
    if (tokenizer := bundle.manifest.tokenizer) is not None:
        files["tokenizer.json"] = bundle.blob(tokenizer)
    files |= program.files
    measured = None
    try:
        with draft(folder) as place:
            made = place / "made"
            made.mkdir(mode=0o755)
            for name, data in files.items():
                (made / name).parent.mkdir(exist_ok=True)
                (made / name).write_bytes(data)
            if (measure := TARGETS[target].measure) is not None:
                measured = measure(artifact, made, pictures)
                record = {"target": target, "recipe": artifact.entry.recipe, "measured": measured}
                files["export.json"] = json_text(record).encode()
                (made / "export.json").write_bytes(files["export.json"])
            put(made, folder)
    except OSError as error:
        do = "Make room there, or name a writable folder with -o"
        raise OutputError(f"cannot be written: {error.strerror or error}", where=str(folder), do=do) from error
    return ExportedProgram(
        artifact.entry.recipe, tuple(folder / name for name in files), program.packages, program.start, measured
    )


def _choose(bundle: Bundle, target: str, recipe: str | None) -> ExportedArtifact:
    """The artifact to export. Raises TargetError, or BundleError for an unknown recipe."""
    entries = bundle.manifest.artifacts if recipe is None else (bundle.artifact(recipe),)
    reasons: dict[str, str] = {}
    for entry in entries:
        artifact = ExportedArtifact(bundle, entry, TARGETS[target].float_sides and entry.format == "tflite")
        reason = next(_refusals(artifact, TARGETS[target]), None)
        if reason is None:
            return artifact
        reasons.setdefault(reason, entry.recipe)
    raise TargetError(
        f"--for {target} cannot express it: " + "; ".join(f"{recipe}: {reason}" for reason, recipe in reasons.items()),
        where=str(bundle.path),
        do="Name another artifact with --recipe, build one that fits, or export --for files",
    )


def _refusals(artifact: ExportedArtifact, target: ExportTarget) -> Iterator[str]:
    entry: ArtifactEntry = artifact.entry
    if entry.role == "batch":
        yield "it takes several items at once"
    if entry.format not in target.formats:
        yield f"it is {entry.format}, and this target takes {' or '.join(target.formats)}"
    yield from target.refusals(artifact)
