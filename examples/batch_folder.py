"""Classify a folder of images into a CSV, with a disk cache.

    python examples/batch_folder.py net.ekb photos/ answers.csv --cache answers.db

The cache is keyed by each image's bytes: a second run computes only new images.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from pathlib import Path

from edgekit_runtime import CacheOptions, EdgekitError, open_bundle


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("bundle")
    asked.add_argument("folder", type=Path)
    asked.add_argument("table", type=Path)
    asked.add_argument("--cache", default="answers.db")
    options = asked.parse_args()
    if not options.folder.is_dir():
        raise SystemExit(f"{options.folder}: there is no such folder")
    sources, failed = Counter[str](), 0
    files = sorted(path for path in options.folder.rglob("*") if path.suffix.lower() in (".png", ".jpg", ".jpeg"))
    with (
        open_bundle(options.bundle, cache=CacheOptions(disk=options.cache)) as model,
        options.table.open("w") as stream,
    ):
        table = csv.writer(stream)
        table.writerow(("file", "label", "score"))
        for path in files:
            try:
                answer = model.predict(path)
            except EdgekitError as error:  # skip a broken file, continue with the rest
                table.writerow((path, f"error: {error}", ""))
                failed += 1
                continue
            (best,) = answer.top(1)
            table.writerow((path, best.label, f"{best.score:.4f}"))
            sources[answer.source] += 1
    counts = [f"{count} from the {source}" for source, count in sources.items()]
    counts += [f"{failed} without an answer"] if failed else []
    print(", ".join(counts) or f"no images in {options.folder}")


if __name__ == "__main__":
    main()
