"""Detect a wake word with a stateful model.

    python examples/wake_word.py hey_house.ekb speech.wav
    arecord -q -t raw -f S16_LE -r 16000 -c 1 | python examples/wake_word.py hey_house.ekb -

The model takes a row of samples, -1 to 1, at its training rate, and returns the word's probability. The word is
detected when the mean of the last scores passes the threshold; then the session restarts.
"""

from __future__ import annotations

import argparse
import collections
import io
import sys
import wave
from collections.abc import Callable, Iterator

import numpy as np

from edgekit_runtime import open_bundle


def pieces(read: Callable[[int], bytes], size: int, hop: int) -> Iterator[np.ndarray]:
    """Yield rows of `size` samples, one every `hop`. read(n) returns n bytes, or none at the end."""
    row = np.zeros(0, np.float32)
    while data := read(2 * hop):
        samples = np.frombuffer(data[: len(data) // 2 * 2], "<i2").astype(np.float32) / 32768
        row = np.concatenate([row, samples])[-size:]
        if len(row) == size:
            yield row


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("bundle")
    asked.add_argument("sound", help="a .wav of one channel in 16 bits, or - for such samples on standard input")
    asked.add_argument("--rate", type=int, default=16_000)
    asked.add_argument("--threshold", type=float, default=0.5)
    asked.add_argument("--mean-of", type=int, default=5)
    options = asked.parse_args()
    rate, read = options.rate, sys.stdin.buffer.read
    if options.sound != "-":
        with wave.open(options.sound) as file:
            if (file.getnchannels(), file.getsampwidth()) != (1, 2):
                sys.exit(f"{options.sound}: not one channel of 16 bits")
            rate, read = file.getframerate(), io.BytesIO(file.readframes(file.getnframes())).read
    with open_bundle(options.bundle) as model, model.session() as session:
        (sound,) = session.contract.caller_inputs
        hop = session.contract.hop or sound.shape[-1]
        last: collections.deque[float] = collections.deque(maxlen=options.mean_of)
        for number, row in enumerate(pieces(read, sound.shape[-1], hop)):
            answer = session.predict(row.reshape(sound.shape))
            last.append(float(next(iter(answer.outputs.values())).ravel()[-1]))
            if len(last) == options.mean_of and sum(last) / len(last) >= options.threshold:
                print(f"heard at {number * hop / rate:.2f} s, {answer.timings['total']:.1f} ms a piece", flush=True)
                last.clear()
                session.reset()


if __name__ == "__main__":
    main()
