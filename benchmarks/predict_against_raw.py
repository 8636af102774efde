"""What predict() costs over the bare engine, on EfficientNet-Lite0.

    make demo                                        # makes the bundle that this times
    .venv/bin/python benchmarks/predict_against_raw.py

The baseline is what a person writes by hand: set_tensor, invoke, get_tensor (int8 in, int8 copied out), one thread.
predict() does that and identifies, looks up, adapts, dequantizes, counts and makes an Answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from side_by_side import compare, report

from edgekit.bench import conditions, golden_inputs
from edgekit_runtime import Model, open_bundle
from edgekit_runtime.bundle import read_bundle
from edgekit_runtime.contract import Adapter, Decoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bundle", type=Path, default=Path("demo/bundles/efficientnet_lite0-raspberry-pi-4.ekb"))
    parser.add_argument("--photo", type=Path, default=Path("demo/chelsea.png"))
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/predict_against_raw.json"))
    options = parser.parse_args()

    bundle = read_bundle(options.bundle)
    entry, contract = bundle.artifact(), bundle.manifest.contract
    pixels = next(iter(golden_inputs(bundle)[0].values()))
    adapter = Adapter(contract.inputs[0], entry.inputs[0])
    ready = np.ascontiguousarray(adapter(pixels)[0])
    batched = ready[None]

    with (
        open_bundle(options.bundle, threads=1, cache_mb=0) as plain,
        open_bundle(options.bundle, threads=1, cache_mb=64) as caching,
    ):
        raw_plain, raw_caching = by_hand(plain, batched), by_hand(caching, batched)

        int8_item, pixel_item = ready.copy(), pixels.copy()
        off = {
            "raw interpreter: set, invoke, get (int8)": raw_plain,
            "predict(int8 ready), cache off": lambda n: plain.predict(fresh(n, int8_item)),
            "predict(uint8 pixels), cache off": lambda n: plain.predict(fresh(n, pixel_item)),
        }
        on = {
            "raw interpreter: set, invoke, get (int8)": raw_caching,
            "predict(int8 ready), every input new": lambda n: caching.predict(fresh(n, int8_item)),
        }
        figures, misses = (compare(ways, rounds=options.rounds, block=20) for ways in (off, on))
        decoder, photo = Decoder(contract.inputs[0]), options.photo.read_bytes()
        stages = compare(
            {
                "adapt: uint8 pixels to int8": lambda _: adapter(pixels),
                "decode: uint8 pixels of the right size": lambda _: decoder(pixels),
                f"decode: {options.photo.name} ({len(photo) // 1024} KiB) to 224 x 224": lambda _: decoder(photo),
            },
            rounds=options.rounds,
            block=10,
        )
    report(
        f"predict() against the raw engine: {bundle.manifest.name}, {entry.recipe}",
        {
            "one inference, one thread": figures,
            "the same with the cache on, and never hit": misses,
            "what decode and adapt cost apart": stages,
        },
        conditions() | {"engine": bundle.manifest.golden[0].answers[0].engine_version},
        options.output,
    )


def fresh(number: int, item: np.ndarray) -> np.ndarray:
    """The same array with another beginning, so that no two inputs are alike; every way pays for it alike."""
    item.reshape(-1)[:4].view(np.uint8)[:] = np.frombuffer(number.to_bytes(4, "little"), np.uint8)
    return item


def by_hand(model: Model, tensor: np.ndarray) -> Callable[[int], np.ndarray]:
    """What a person writes, on the model's own interpreter: two interpreters of the same file differ by some per cent."""
    interpreter = model._engine._interpreter
    (given,), (wanted,) = interpreter.get_input_details(), interpreter.get_output_details()

    def raw(number: int) -> np.ndarray:
        interpreter.set_tensor(given["index"], fresh(number, tensor))
        interpreter.invoke()
        return interpreter.get_tensor(wanted["index"])

    return raw


if __name__ == "__main__":
    main()
