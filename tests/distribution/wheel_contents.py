"""Check what a built wheel holds: `python tests/distribution/wheel_contents.py dist/NAME.whl`.

Four packages and nothing else at the top, the data files that the code reads, types for the application's checker, and
no test, benchmark, model or photo.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

PACKAGES = {"edgekit", "edgekit_converters", "edgekit_profiles", "edgekit_runtime"}
NEEDED = {
    *(
        f"edgekit/shipping/board/{name}.sh"
        for name in ("install", "uninstall", "postinst", "prerm", "postrm", "probe", "store", "mender")
    ),
    "edgekit_profiles/boards/raspberry-pi-4.toml",
    "edgekit_profiles/boards/raspberry-pi-5.toml",
    "edgekit_profiles/boards/jetson-nano.toml",
    "edgekit_profiles/boards/x86-64.toml",
    "edgekit_profiles/boards/host-cpu.toml",
    "edgekit_profiles/boards/cortex-a53.toml",
    "edgekit_profiles/cores.toml",
    "edgekit_profiles/wheels.toml",
    "edgekit_profiles/engines.toml",
    "edgekit_profiles/roofline.toml",
    "edgekit_converters/formats/onnx_kernels.json",
    "edgekit_converters/formats/operators.toml",
    "edgekit_converters/formats/registered.toml",
    "edgekit_converters/sources/allowed.toml",
    "edgekit/boards/catalogue.toml",
    "edgekit/host/triton_model.txt",
    *(
        f"edgekit/shipping/programs/templates/{name}"
        for name in (
            "run.py.txt",
            "predict.js",
            "predict.d.ts",
            "index.html",
            "predict.h",
            "predict.c",
            "main.c",
            "mediapipe.js",
            "mediapipe.py.txt",
            "Predict.kt",
            "Predict.swift",
            "Makefile",
            "frigate.yml",
        )
    ),
    "edgekit/fleet/grafana.json",
    *(f"edgekit/fleet/pages/{name}" for name in ("templates/base.html", "static/fleet.css", "static/fleet.js")),
    *(f"{package}/py.typed" for package in PACKAGES),
}
ALLOWED_SUFFIXES = {".py", ".sh", ".c", ".toml", ".typed", ".html", ".css", ".js", ".svg"}


def problems(wheel: Path) -> list[str]:
    """Sentences; none when the wheel is right."""
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    found = [f"unexpected top level: {top}" for top in sorted({name.split("/")[0] for name in names} - PACKAGES)]
    found += [f"missing: {name}" for name in sorted(NEEDED - set(names))]
    found += [
        f"should not be shipped: {name}"
        for name in names
        if Path(name).suffix not in ALLOWED_SUFFIXES and name not in NEEDED
    ]
    if wheel.stat().st_size > 1_800_000:  # it has 1.76 MB, of which half is the fleet's and the workstation's
        found.append(f"{wheel.stat().st_size:,} bytes is more than a board should have to fetch")
    return found


if __name__ == "__main__":
    complaints = [f"{path}: {problem}" for path in sys.argv[1:] for problem in problems(Path(path))]
    print("\n".join(complaints) or f"{len(sys.argv) - 1} wheel(s) hold what they should")
    sys.exit(1 if complaints or len(sys.argv) < 2 else 0)
