r"""Do the programs that `edgekit export` writes answer what Python answers? One table, a row a bundle and an engine.

    edgekit demo --folder demo
    python benchmarks/export/table.py demo/bundles/*.ekb onnx/yolov8n-x86-64.ekb tflite/yolov8n-x86-64.ekb \
      --pictures demo/photos --cache FOLDER

The reference is edgekit_runtime with the artifact that was exported. A classifier agrees on a picture if its five best
classes are the same, in order, where those of equal scores may stand for each other; a detector if its boxes have the
same classes in the same order. `apart` is the largest
difference of a score, and of a box's side in pixels, in answers that agree. The detector is 320n.onnx of the package
nudenet (AGPL-3.0); onnx2tf makes its TFLite file:

    edgekit contract 320n.onnx --like yolo --shape images=1,3,320,320
    edgekit build 320n.onnx --name yolov8n --shape images=1,3,320,320 --calibration photos --profile x86-64 \
      --recipe onnx-f32 -o onnx                          # and again: --recipe tflite-f32 -o tflite

Needs Node, Chromium, compilers and QEMU: see .ci/run; MediaPipe's Python package comes from PyPI. An engine that takes
no such file has no row; one that fails has a row that says why.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from PIL import Image

sys.path[:0] = [str(Path(__file__).parents[2] / "tests/support"), str(Path(__file__).parents[1])]
import foreign
from wanted import put_between

from edgekit.boards.emulated_board import CPUS
from edgekit.boards.emulated_board import Image as System
from edgekit.boards.qemu import EmulatedBoard, emulator
from edgekit.boards.userland import userland
from edgekit.shipping.programs.export import TargetError, export
from edgekit_runtime import open_bundle
from edgekit_runtime.bundle.reader import Bundle, read_bundle
from edgekit_runtime.policy.options import EngineName

Answer = list[tuple[str, tuple[float, ...]]]
"""Label or index, and the numbers behind it: a score, for boxes four sides too."""
BEST = 5
Asked = Callable[[Path], Answer]


@dataclass(frozen=True)
class Row:
    """same, best: pictures with the same answer, and the same best class or box, of `pictures`.
    why: what stopped the engine."""

    bundle: str
    recipe: str
    engine: str
    same: int = 0
    best: int = 0
    pictures: int = 0
    apart: float = 0.0
    pixels: float = 0.0
    boxes: bool = False
    why: str = ""


class Parts:
    """What the engines need, made in a folder on first use."""

    def __init__(self, cache: Path, stack: ExitStack) -> None:
        self.cache, self.stack = cache, stack
        self._made: dict[str, Any] = {}

    def _once(self, name: str, make: Callable[[Path], object]) -> Path:
        folder = self.cache / name
        if not folder.with_suffix(".made").exists():
            folder.mkdir(parents=True, exist_ok=True)
            make(folder)
            folder.with_suffix(".made").touch()
        return folder

    @property
    def modules(self) -> Path:
        return self._once("npm", foreign.install) / "node_modules"

    def land(self, machine: str) -> Any:
        return userland(System("trixie", machine), ["libonnxruntime-dev"], cache_dir=self.cache)

    def onnxruntime(self, machine: str) -> Path:
        headers = self.land("aarch64").root / foreign.HEADERS
        return self._once(f"ort-{machine}", lambda folder: foreign.join(folder, headers, self.modules, machine))

    @property
    def mediapipe(self) -> Path:
        return self._once("mediapipe", foreign.install_mediapipe)

    @property
    def browser(self) -> Any:
        if "browser" not in self._made:
            from selenium import webdriver
            from selenium.webdriver.chrome.service import Service

            options = webdriver.ChromeOptions()
            for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader"):
                options.add_argument(flag)
            driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
            driver.set_script_timeout(300)
            self.stack.callback(driver.quit)
            self._made["browser"] = driver
        return self._made["browser"]


def lines(text: str, numbers: int) -> Answer:
    """What a program prints: a label and numbers a line."""
    parts = [line.rsplit(" ", numbers) for line in text.splitlines() if line.strip()]
    return [(label, tuple(map(float, values))) for label, *values in parts]


def said(command: list[Any], folder: Path, numbers: int, **more: Any) -> Answer:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        raise RuntimeError((done.stderr or done.stdout).strip().splitlines()[-1])
    return lines(done.stdout, numbers)


def node(folder: Path, numbers: int, parts: Parts) -> Asked:
    (folder / "node_modules").symlink_to(parts.modules)
    return lambda picture: said(["node", "predict.js", picture], folder, numbers)


def chromium(folder: Path, numbers: int, parts: Parts) -> Asked:
    (folder / "node_modules").symlink_to(parts.modules)
    address = parts.stack.enter_context(foreign.served(folder))
    parts.browser.get(f"{address}/index.html")

    def ask(picture: Path) -> Answer:
        (folder / "picture.png").write_bytes(picture.read_bytes())
        answer = parts.browser.execute_async_script(
            """const done = arguments[1];
            (async () => {
                const response = await fetch("picture.png?" + arguments[0]);
                return (await import("./predict.js")).predict(await createImageBitmap(await response.blob()));
            })().then(done, (error) => done(String(error)));""",
            picture.name,
        )
        if isinstance(answer, str):
            raise RuntimeError(answer)  # noqa: TRY004 - what the page threw
        sides = ("left", "top", "right", "bottom")[: numbers - 1]
        return [(one["label"], (one["score"], *(one[side] for side in sides))) for one in answer]

    return ask


def native(folder: Path, numbers: int, parts: Parts) -> Asked:
    foreign.compile_program(folder, parts.onnxruntime("x86_64"), flags="-O2")
    return lambda picture: said(["./predict", ppm(picture, folder)], folder, numbers)


def emulated(cpu: str) -> Callable[[Path, int, Parts], Asked]:
    def prepared(folder: Path, numbers: int, parts: Parts) -> Asked:
        machine, land = CPUS[cpu].machine, parts.land(CPUS[cpu].machine)
        arm64 = machine == "aarch64"  # Debian's library stops a Cortex-A72 with an illegal instruction
        libraries = parts.onnxruntime(machine) / "lib" if arm64 else land.root / "usr/lib" / foreign.TRIPLES[machine]
        foreign.cross_compile(folder, machine, land.root / foreign.HEADERS, libraries)
        board = parts.stack.enter_context(EmulatedBoard(land, CPUS[cpu]))
        run = [emulator(System("trixie", machine)), "-cpu", cpu, "-L", board.root, "./predict"]
        environment = {"LD_LIBRARY_PATH": str(libraries)}
        return lambda picture: said([*run, ppm(picture, folder)], folder, numbers, env=environment)

    return prepared


def mediapipe(folder: Path, numbers: int, parts: Parts) -> Asked:
    environment = os.environ | {"PYTHONPATH": str(parts.mediapipe)}
    command = [sys.executable, "-B", "-c", foreign.PREDICT_PY]
    return lambda picture: said([*command, picture], folder, numbers, env=environment)


def ppm(picture: Path, folder: Path) -> Path:
    with Image.open(picture) as opened:
        opened.convert("RGB").save(folder / "picture.ppm")
    return folder / "picture.ppm"


ENGINES: dict[str, tuple[str, str, Callable[[Path, int, Parts], Asked]]] = {
    "Node, onnxruntime-node": ("node", "onnx", node),
    "Chromium, onnxruntime-web": ("web", "onnx", chromium),
    "Chromium, LiteRT.js": ("web", "tflite", chromium),
    "Python, MediaPipe": ("mediapipe", "tflite", mediapipe),
    "Chromium, MediaPipe": ("mediapipe", "tflite", chromium),
    "C, x86-64": ("c", "onnx", native),
    "C, Cortex-A72 under QEMU": ("c", "onnx", emulated("cortex-a72")),
}
"""Name -> its target, its format, and a function that makes a folder ready: (folder, numbers a line, parts)."""


def wanted(path: Path, engine: EngineName, pictures: list[Path]) -> list[Answer]:
    """Python's answers: boxes, or the score of each class."""
    with open_bundle(path, engine=engine, cache=False, settled=True) as model:
        classes = len(model.contract.labels or ()) or BEST
        answers = [model.predict(picture) for picture in pictures]
        if model.contract.task != "detection":
            return [[(one.label, (one.score,)) for one in answer.top(classes)] for answer in answers]
    return [
        [(one.label, (one.score, one.left, one.top, one.right, one.bottom)) for one in answer.boxes]
        for answer in answers
    ]


def rows(bundle: Bundle, path: Path, pictures: list[Path], parts: Parts, engines: Sequence[str] = ()) -> Iterator[Row]:
    known: dict[EngineName, list[Answer]] = {}
    numbers = 5 if bundle.manifest.contract.task == "detection" else 1
    for number, (name, (target, kind, prepare)) in enumerate(ENGINES.items()):
        recipe = next((one.recipe for one in bundle.manifest.artifacts if one.format == kind), None)
        if recipe is None or (engines and name not in engines):
            continue
        folder = parts.cache / "exported" / f"{path.stem}-{number}"
        row = Row(bundle.manifest.name, "", name, pictures=len(pictures), boxes=numbers > 1)
        try:
            row = replace(row, recipe=export(bundle, folder, target, recipe).recipe)
            ask = prepare(folder, numbers, parts)
            given = [ask(picture) for picture in pictures]
        except TargetError:  # the engine takes no such file
            continue
        except RuntimeError as error:
            yield replace(row, why=str(error))
            continue
        engine: EngineName = "onnxruntime" if kind == "onnx" else "litert"
        if engine not in known:
            known[engine] = wanted(path, engine, pictures)
        yield compared(row, given, known[engine])


def ranks(answer: Answer, known: Answer) -> list[Any]:
    """What the reference says of an answer's lines: boxes' classes by score; of classes their own scores there, so that
    those of equal scores are alike."""
    if known and len(known[0][1]) > 1:
        return [sorted(label for label, _ in ties) for _, ties in groupby(answer, key=lambda one: round(one[1][0], 4))]
    scores = {label: round(numbers[0], 4) for label, numbers in reversed(known)}
    return [scores.get(label) for label, _ in answer[:BEST]]


def compared(row: Row, given: list[Answer], answers: list[Answer]) -> Row:
    """The row with what `given` and the reference have in common."""
    both = list(zip(given, answers, strict=True))
    alike = [(a, b) for a, b in both if ranks(a, b) == ranks(b, b)]
    best = sum(ranks(a, b)[:1] == ranks(b, b)[:1] for a, b in both)
    pairs = [(x, y) for a, b in alike for (_, x), (_, y) in zip(a, b, strict=False)]
    apart = max((abs(x[0] - y[0]) for x, y in pairs), default=0.0)
    pixels = max((abs(p - q) for x, y in pairs for p, q in zip(x[1:], y[1:], strict=True)), default=0.0)
    return replace(row, same=len(alike), best=best, apart=apart, pixels=pixels)


def markdown(found: list[Row]) -> str:
    text = ["| bundle | engine | same answer | same best | scores apart | sides apart |", "|---|---|---|---|---|---|"]
    for row in found:
        sides = f"{row.pixels:.1f} px" if row.boxes else ""
        same = f"{row.same} of {row.pictures} | {row.best} of {row.pictures} | {row.apart:.4f} | {sides} |"
        what = f"{row.why} | | | |" if row.why else same
        text.append(f"| {row.bundle}, {row.recipe} | {row.engine} | {what}")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--engine", action="append", default=[], choices=ENGINES, help="Only this one; repeatable.")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--docs", type=Path)
    options = parser.parse_args()
    every = sorted(options.pictures.glob("*.png"))
    pictures = every[:: max(1, len(every) // options.count)][: options.count]
    found: list[Row] = []
    with ExitStack() as stack:
        parts = Parts(options.cache.resolve(), stack)
        for path in options.bundles:
            for row in rows(read_bundle(path), path, [one.resolve() for one in pictures], parts, options.engine):
                found.append(row)
                print(row, file=sys.stderr, flush=True)
    print(markdown(found))
    if options.engine and options.write and options.write.exists():  # the other engines' rows stay
        old = [Row(**row) for row in json.loads(options.write.read_text())["rows"]]
        found = list({(row.bundle, row.recipe, row.engine): row for row in (*old, *found)}.values())
    if options.write:
        options.write.write_text(json.dumps({"rows": [asdict(row) for row in found]}, indent=1) + "\n")
    if options.docs:
        put_between(options.docs, "export", markdown(found))


if __name__ == "__main__":
    main()
