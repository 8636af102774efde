"""The peers' own virtual environment, made on first use from requirements.txt beside this file, or from another list.

python benchmarks/conversion/environment.py --cache FOLDER
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def peers_python(cache: Path, requirements: Path = REQUIREMENTS, name: str = "peers-environment") -> Path:
    """Its interpreter. Made anew where the requirements have changed."""
    folder = (cache / name).resolve()
    python, done = folder / "bin/python", folder / "installed.txt"
    wanted = requirements.read_text()
    if not done.exists() or done.read_text() != wanted:
        print("making the peers' environment: some minutes", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        command = [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-r",
            str(requirements),
        ]
        subprocess.run(command, check=True)
        done.write_text(wanted)
    return python


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cache", type=Path, required=True)
    print(peers_python(parser.parse_args().cache))
