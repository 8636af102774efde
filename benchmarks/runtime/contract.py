"""What lies between a caller's picture and the engine, and between the engine and an answer.

Each step beside other ways.

    python benchmarks/runtime/contract.py

- pixels to an artifact's numbers: what the definition says, as NumPy makes it, look-up tables, multiply-adds;
- camera frames: colouring before sizing, and sizing before colouring;
- encoded pictures: decoding all of a large JPEG, and what the network needs of it, with the peak of memory;
- boxes: non-maximum suppression pair by pair, as it is usually written for NumPy, and in blocks.

Before anything is timed the ways of a table are held against each other: integers agree within one step, floats within
1e-4.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))

from side_by_side import Figures, compare

from edgekit.bench.conditions import conditions
from edgekit_runtime.contract.adapt import CLIP_EVERY, Adapter
from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.contract.detect import boxes, suppress
from edgekit_runtime.contract.frame import Frame, to_rgb
from edgekit_runtime.contract.geometry import Geometry
from edgekit_runtime.contract.spec import (
    Contract,
    DetectionSpec,
    ImageSpec,
    InputContract,
    OutputContract,
    Quantization,
    TensorSpec,
)

SIDE = 224
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
SCALE, ZERO_POINT = 0.0187, -14
PHOTOS = {"640 x 480": (640, 480), "1080p": (1920, 1080), "12-megapixel": (4000, 3000)}
Ways = dict[str, Callable[[int], Any]]
Pixels = np.ndarray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/runtime_contract.json"))
    options = parser.parse_args()
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    tables = {
        "224 x 224 x 3 pixels -> int8, mean and std a channel": of_channels(pixels),
        "224 x 224 x 3 pixels -> int8, one mean and std": of_one(pixels),
        "224 x 224 x 3 pixels -> float32 NHWC, mean and std a channel": of_floats(pixels, "NHWC"),
        "224 x 224 x 3 pixels -> float32 NCHW, mean and std a channel": of_floats(pixels, "NCHW"),
        "clipped values of a request's int8 tensor, looked at in one request of 16": of_clipped(pixels),
        "1280 x 720 NV12 -> 224 x 224 RGB": of_frames(random),
        "224 x 224 NV12 -> RGB, no resize": of_small_frames(random),
        **{f"{caption} JPEG -> 224 x 224": of_photo(*size) for caption, size in PHOTOS.items()},
        "8,400 candidates of 80 classes, 300 of them above the threshold: suppression": of_suppression(random),
        "YOLOv8's [84, 8400] -> boxes in the caller's pixels": of_detection(random),
    }
    block = {f"{caption} JPEG -> 224 x 224": 2 for caption in PHOTOS} | {"1280 x 720 NV12 -> 224 x 224 RGB": 10}
    measured = {
        caption: compare(ways, rounds=options.rounds, block=block.get(caption, 40), warm_up=4)
        for caption, ways in tables.items()
    }
    report(measured, peaks(), differences(), options.output)


def of_channels(pixels: Pixels) -> Ways:
    mean, std = np.float32(MEAN), np.float32(STD)
    contract, spec = specs(MEAN, STD, SCALE, ZERO_POINT)
    adapter = Adapter(contract, spec)
    every = (np.arange(256, dtype=np.float32)[:, None] - mean) / std
    table = np.clip(np.rint(every / np.float32(SCALE)) + ZERO_POINT, -128, 127).astype(np.int8)
    columns = [np.ascontiguousarray(table[:, c]) for c in range(3)]
    scale, shift = np.float32(1 / (std * SCALE)), np.float32(ZERO_POINT - mean / (std * SCALE))
    rows, long = (np.tile(scale, SIDE), np.tile(shift, SIDE)), (np.tile(scale, SIDE * 16), np.tile(shift, SIDE * 16))

    def definition(_: int) -> Pixels:
        real = (pixels.astype(np.float32) - mean) / std
        return np.clip(np.rint(real / np.float32(SCALE)) + ZERO_POINT, -128, 127).astype(np.int8)

    def multiply_add(constants: tuple[Pixels, Pixels]) -> Pixels:
        steps = pixels.reshape(-1, len(constants[0])).astype(np.float32)
        steps *= constants[0]
        steps += constants[1]
        np.rint(steps, out=steps)
        np.clip(steps, -128, 127, out=steps)
        return steps.astype(np.int8).reshape(pixels.shape)

    def clipped_take(column: Pixels, values: Pixels) -> Pixels:
        return np.take(column, values, out=np.empty(values.shape, np.int8), mode="clip")

    def translated(column: Pixels, values: Pixels) -> Pixels:
        return np.frombuffer(values.tobytes().translate(column.tobytes()), np.int8).reshape(values.shape)

    def by_channel(look_up: Callable[[Pixels, Pixels], Pixels]) -> Pixels:
        return np.stack([look_up(column, pixels[..., c]) for c, column in enumerate(columns)], axis=-1)

    ways = {
        "the definition: ((pixels - mean) / std) / scale + zero": definition,
        "table[pixels] a channel": lambda _: by_channel(lambda column, values: column[values]),
        "np.take a channel": lambda _: by_channel(lambda column, values: column.take(values)),
        "np.take a channel, out=, mode='clip'": lambda _: by_channel(clipped_take),
        "bytes.translate a channel": lambda _: by_channel(translated),
        "float32 multiply-add, constants of a row": lambda _: multiply_add(rows),
        "float32 multiply-add, constants of 16 rows": lambda _: multiply_add(long),
        f"edgekit ({adapter.way}: int32 multiply-add, constants of 16 rows)": lambda _: adapter(pixels)[0],
    }
    return agreeing(ways, off=1)


def of_one(pixels: Pixels) -> Ways:
    contract, spec = specs((127.5,) * 3, (127.5,) * 3, 0.00787, 3)
    adapter = Adapter(contract, spec)
    every = (np.arange(256, dtype=np.float32) - 127.5) / np.float32(127.5)
    table = np.clip(np.rint(every / np.float32(0.00787)) + 3, -128, 127).astype(np.int8)
    pairs = (
        (table.view(np.uint8).astype(np.uint16)[:, None] << 8 | table.view(np.uint8)[None]).astype(np.uint16).ravel()
    )
    shifted = Adapter(*specs((127,) * 3, (128,) * 3, 1 / 128, -1))
    ways = {
        "table[pixels]": lambda _: table[pixels],
        "np.take": lambda _: table.take(pixels),
        "bytes.translate": lambda _: np.frombuffer(pixels.tobytes().translate(table.tobytes()), np.int8).reshape(
            pixels.shape
        ),
        "np.take of two values at once, 65,536 entries": lambda _: (
            pairs.take(pixels.reshape(-1).view(np.uint16)).view(np.int8).reshape(pixels.shape)
        ),
        f"edgekit ({adapter.way})": lambda _: adapter(pixels)[0],
    }
    # Another quantization, for which the steps of pixels and of int8 line up.
    return agreeing(ways) | {f"edgekit ({shifted.way}), where quantized = pixel - 128": lambda _: shifted(pixels)}


def of_floats(pixels: Pixels, layout: str) -> Ways:
    mean, std = np.float32(MEAN), np.float32(STD)
    contract, spec = specs(MEAN, STD, None, 0, layout)
    adapter = Adapter(contract, spec)
    turned = (lambda x: np.ascontiguousarray(x.transpose(2, 0, 1))) if layout == "NCHW" else (lambda x: x)
    scale, shift = np.float32(1 / std), np.float32(-mean / std)

    def in_place(_: int) -> Pixels:
        real = pixels.astype(np.float32)
        real *= scale
        real += shift
        return turned(real)

    ways = {
        "(pixels - mean) / std": lambda _: turned((pixels.astype(np.float32) - mean) / std),
        "multiply and add in place, three constants": in_place,
        f"edgekit ({adapter.way})": lambda _: adapter(pixels)[0],
    }
    return agreeing(ways, off=1e-4)


def of_clipped(pixels: Pixels) -> Ways:
    adapter = Adapter(*specs(MEAN, STD, SCALE, ZERO_POINT))
    tensor = adapter(pixels)

    def sampled(_: int) -> None:
        for number in range(CLIP_EVERY):
            adapter.clipped(tensor, number)

    return {
        "every value of every request": lambda _: np.count_nonzero((tensor == -128) | (tensor == 127)),
        f"edgekit, {CLIP_EVERY} requests": sampled,
    }


def of_frames(random: np.random.Generator) -> Ways:
    data = random.integers(16, 236, 1280 * 720 * 3 // 2, np.uint8)
    decode = decoder()

    def coloured_first(_: int) -> Pixels:
        frame = Frame(data, "nv12", width=1280, height=720)
        picture = Image.fromarray(to_rgb(*frame.parts, "bt601", False))
        return np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR))

    def floats_first(_: int) -> Pixels:
        frame = Frame(data, "nv12", width=1280, height=720)
        picture = Image.fromarray(of_formula(*frame.parts))
        return np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR))

    return {
        "coloured in float32, then resized": floats_first,
        "coloured in integers, then resized": coloured_first,
        "edgekit: planes resized, then coloured": lambda _: decode(Frame(data, "nv12", width=1280, height=720)),
    }


def of_small_frames(random: np.random.Generator) -> Ways:
    data = random.integers(16, 236, SIDE * SIDE * 3 // 2, np.uint8)
    decode = decoder()
    return {
        "float32, as the formula says": lambda _: of_formula(*Frame(data, "nv12", width=SIDE, height=SIDE).parts),
        "edgekit": lambda _: decode(Frame(data, "nv12", width=SIDE, height=SIDE)),
    }


def of_formula(y: Pixels, u: Pixels, v: Pixels) -> Pixels:
    u, v = (plane.repeat(2, axis=0).repeat(2, axis=1).astype(np.float32) - 128 for plane in (u, v))
    y = (y.astype(np.float32) - 16) * np.float32(255 / 219)
    rgb = [y + np.float32(1.596027) * v, y - np.float32(0.391762) * u - np.float32(0.812968) * v, y]
    rgb[2] = y + np.float32(2.017232) * u
    return np.clip(np.rint(np.stack(rgb, axis=-1)), 0, 255).astype(np.uint8)


def of_photo(width: int, height: int) -> Ways:
    """OpenCV decodes at the smallest fraction that fills the network, and averages."""
    data = photo(width, height)
    decode = decoder()

    def whole(_: int) -> Pixels:
        picture = Image.open(io.BytesIO(data)).convert("RGB")
        return np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR))

    def reducing(_: int) -> Pixels:
        picture = Image.open(io.BytesIO(data))
        picture.draft("RGB", (2 * SIDE, 2 * SIDE))
        return np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR, reducing_gap=2.0))

    def reduced(_: int) -> Pixels:
        import cv2

        fraction = next((n for n in (8, 4, 2) if min(width, height) // n >= SIDE), 1)
        flag = getattr(cv2, f"IMREAD_REDUCED_COLOR_{fraction}") if fraction > 1 else cv2.IMREAD_COLOR
        small = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
        return cv2.cvtColor(cv2.resize(small, (SIDE, SIDE), interpolation=cv2.INTER_AREA), cv2.COLOR_BGR2RGB)

    return {
        "all of it, then resized": whole,
        "Pillow, reducing_gap=2": reducing,
        **({"OpenCV, reduced decoding": reduced} if find_spec("cv2") else {}),
        "edgekit: decoded small": lambda _: decode(data),
    }


def of_suppression(random: np.random.Generator) -> Ways:
    corners, scores, classes = scene(random, 300)

    def usual(_: int) -> list[int]:
        """As most write it: the surest against all the others, again and again, a class after another."""
        kept = []
        for kind in np.unique(classes):
            left = np.flatnonzero(classes == kind)
            left = left[np.argsort(-scores[left], kind="stable")]
            while len(left):
                best, left = left[0], left[1:]
                kept.append(best)
                low, high = (
                    np.maximum(corners[best, :2], corners[left, :2]),
                    np.minimum(corners[best, 2:], corners[left, 2:]),
                )
                common = np.clip(high - low, 0, None).prod(axis=1)
                sizes = (corners[left, 2:] - corners[left, :2]).prod(axis=1)
                union = (corners[best, 2:] - corners[best, :2]).prod() + sizes - common
                left = left[common <= 0.45 * union]
        return sorted(kept, key=lambda i: (-scores[i], i))[:100]

    def pairs(_: int) -> list[int]:
        kept: list[int] = []
        for i in np.argsort(-scores, kind="stable").tolist():
            if len(kept) < 100 and not any(
                classes[i] == classes[j] and iou(corners[i], corners[j]) > 0.45 for j in kept
            ):
                kept.append(i)
        return kept

    ways = {
        "pair by pair, in Python": pairs,
        "the surest against the rest, a class at a time": usual,
        "edgekit: in blocks of 128": lambda _: suppress(corners, scores, classes, 0.45, 100),
    }
    return agreeing(ways)


def iou(a: Pixels, b: Pixels) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    common = max(width, 0) * max(height, 0)
    return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common)


def scene(random: np.random.Generator, count: int) -> tuple[Pixels, Pixels, Pixels]:
    """Thirty things, each found ten times or so, a few pixels apart."""
    things = random.uniform(0, 560, (30, 2))
    which = random.integers(0, 30, count)
    corner = things[which] + random.normal(0, 4, (count, 2))
    size = random.uniform(40, 80, (30, 2))[which] + random.normal(0, 4, (count, 2))
    return np.concatenate([corner, corner + size], axis=1), random.uniform(0.3, 1, count), which % 20


def of_detection(random: np.random.Generator) -> Ways:
    corners, scores, classes = scene(random, 300)
    raw = np.zeros((84, 8400), np.float32)
    raw[4:] = random.uniform(0, 0.2, (80, 8400))
    at = random.permutation(8400)[:300]
    raw[:4, at] = np.concatenate([(corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]], axis=1).T
    raw[4 + classes, at] = scores
    image = InputContract("x", (640, 640, 3), "float32", ImageSpec(640, 640, (0.0,) * 3, (255.0,) * 3))
    spec = DetectionSpec("y", "box scores", "cxcywh", (640, 640), candidates="last")
    contract = Contract("detection", (image,), (OutputContract("y", raw.shape, "float32"),), detection=spec)
    geometry = Geometry(1280, 720, 0, -280, 2.0, 2.0)

    def usual(_: int) -> Pixels:
        rows = raw.T
        kinds = rows[:, 4:].argmax(axis=1)
        best = rows[np.arange(8400), 4 + kinds]
        return rows[best >= 0.25]

    return {
        "argmax over every candidate's classes, threshold; no suppression yet": usual,
        "edgekit: all of it, a list of Box": lambda _: boxes({"y": raw}, contract, geometry),
    }


def specs(
    mean: tuple[float, ...], std: tuple[float, ...], scale: float | None, zero_point: int, layout: str = "NHWC"
) -> tuple[InputContract, TensorSpec]:
    image = ImageSpec(SIDE, SIDE, tuple(map(float, mean)), tuple(map(float, std)))
    shape = (1, SIDE, SIDE, 3) if layout == "NHWC" else (1, 3, SIDE, SIDE)
    quantization = Quantization(scale, zero_point) if scale is not None else None
    tensor = TensorSpec("x", "x", "int8" if scale is not None else "float32", shape, layout, quantization)
    return InputContract("x", (SIDE, SIDE, 3), "float32", image), tensor


def decoder() -> Decoder:
    return Decoder(specs(MEAN, STD, None, 0)[0])


def photo(width: int, height: int, kind: str = "JPEG") -> bytes:
    """Something with the detail of a photograph: noise of many sizes."""
    random, made = np.random.default_rng(1), np.zeros((height, width, 3), np.float32)
    for size in (8, 64, 512):
        grain = Image.fromarray(random.integers(0, 256, (max(1, height // size), max(1, width // size), 3), np.uint8))
        made += np.asarray(grain.resize((width, height), Image.Resampling.BICUBIC), np.float32) / 3
    file = io.BytesIO()
    Image.fromarray(made.astype(np.uint8)).save(file, kind, quality=90)
    return file.getvalue()


def agreeing(ways: Ways, off: float = 0) -> Ways:
    """The ways as they are, once all have been seen to give the same."""
    results = {name: np.asarray(call(0), np.float64) for name, call in ways.items()}
    first = next(iter(results.values()))
    for name, result in results.items():
        worst = np.abs(result - first).max()
        assert worst <= off, f"{name} is off by {worst}"
    return ways


def differences() -> list[dict[str, Any]]:
    """How far the shorter ways lie from the longer ones, of 255."""
    pairs: dict[str, tuple[Pixels, Pixels]] = {}
    for width, height in ((1600, 1200), (4000, 3000)):
        data = photo(width, height)
        whole = Image.open(io.BytesIO(data)).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        pairs[f"{width} x {height} JPEG decoded small, against all of it"] = (decoder()(data), np.asarray(whole))
    y, u, v = Image.open(io.BytesIO(photo(1280, 720))).convert("YCbCr").split()
    halves = [np.asarray(plane.resize((640, 360), Image.Resampling.BOX)) for plane in (u, v)]
    data = np.concatenate([np.asarray(y).reshape(-1), np.stack(halves, axis=-1).reshape(-1)])
    frame = Frame(data, "nv12", width=1280, height=720, full_range=True)
    after = Image.fromarray(to_rgb(*frame.parts, "bt601", True)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    pairs["1280 x 720 NV12 sized before it is coloured, against after"] = (decoder()(frame), np.asarray(after))
    rows = []
    for name, (ours, longer) in pairs.items():
        off = np.abs(ours.astype(int) - longer)
        rows.append({"what": name, "mean": round(float(off.mean()), 3), "most": int(off.max())})
    return rows


PEAK = """
import json, sys
from pathlib import Path
from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.contract.spec import ImageSpec, InputContract
from edgekit_runtime.system.errors import InputError
side = 224
decode = Decoder(InputContract("x", (side, side, 3), "float32", ImageSpec(side, side, (0.0,) * 3, (1.0,) * 3)))
decode(sys.argv[2])
def held():  # the most that this process ever held; what getrusage tells, it inherits
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
before = held()
try:
    decode(sys.argv[1])
    said = None
except InputError as error:
    said = error.what
print(json.dumps({"mb": round(held() - before, 1), "refused": said}))
"""


def peaks() -> list[dict[str, Any]]:
    """What decoding adds to a process, at most, each in a process of its own."""
    made = {
        "JPEG, 12 megapixels": ("RGB", (4000, 3000), "JPEG", {}),
        "JPEG, 100 megapixels": ("RGB", (12_000, 8_400), "JPEG", {}),
        "progressive JPEG, 32 megapixels": ("RGB", (7680, 4320), "JPEG", {"progressive": True}),
        "progressive JPEG, 100 megapixels": ("RGB", (12_000, 8_400), "JPEG", {"progressive": True}),
        "PNG, 12 megapixels": ("RGB", (4000, 3000), "PNG", {}),
        "PNG, 33 megapixels, the most there may be": ("RGB", (7680, 4320), "PNG", {}),
        "PNG with alpha, 33 megapixels": ("RGBA", (7680, 4320), "PNG", {}),
        "PNG, 100 megapixels": ("RGB", (12_000, 8_400), "PNG", {}),
    }
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small.jpg"
        Image.new("RGB", (300, 300)).save(small)
        for name, (mode, size, kind, options) in made.items():
            file = Path(folder) / f"large.{kind.lower()}"
            Image.new(mode, size, 120).save(file, kind, **options)
            child = [sys.executable, "-c", PEAK, str(file), str(small)]
            done = subprocess.run(child, capture_output=True, text=True, check=True, timeout=300)
            megapixels = size[0] * size[1] / 1e6
            rows.append({"picture": name, "megapixels": megapixels, **json.loads(done.stdout)})
    return rows


def report(
    measured: dict[str, list[Figures]], memory: list[dict[str, Any]], off: list[dict[str, Any]], file: Path
) -> None:
    told = conditions()
    print("between a picture and the engine\n  " + ", ".join(f"{k} {v}" for k, v in told.items() if v is not None))
    for caption, rows in measured.items():
        print(f"\n{caption}\n  {'':<68} {'p50 us':>10} {'p99 us':>10} {'ratio':>7}")
        for row in rows:
            print(f"  {row.name:<68} {row.p50_us:>10.1f} {row.p99_us:>10.1f} {row.ratio:>7.3f}")
    print("\npeak of memory that decoding to 224 x 224 adds")
    for peak in memory:
        print(f"  {peak['picture']:<68} {peak['mb']:>7.1f} MiB  {peak['refused'] or ''}")
    print("\nhow far off the shorter way is, of 255")
    for row in off:
        print(f"  {row['what']:<68} {row['mean']:>7.2f} on average, {row['most']} at most")
    tables = {caption: [asdict(row) for row in rows] for caption, rows in measured.items()}
    value = {"title": "between a picture and the engine", "conditions": told, "tables": tables}
    value |= {"peak_mib": memory, "differences": off}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=2) + "\n")
    print(f"\nwritten to {file}", file=sys.stderr)


if __name__ == "__main__":
    main()
