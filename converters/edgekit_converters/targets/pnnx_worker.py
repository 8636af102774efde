"""pnnx in a sandbox: one folder, no network, bounded memory, files and time.

python -m edgekit_converters.targets.pnnx_worker PROGRAM FOLDER BYTES
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from edgekit_converters.sources.sandbox import Sandbox, enter_sandbox
from edgekit_runtime.system.children import die_with_parent, limit_files, limit_memory, limit_processor_time

INPUT, RESULT = "model.onnx", "model.ncnn"
LIMIT_S = 600


def main(program: str, folder: str, memory: str) -> None:
    """memory: bytes that pnnx may take."""
    die_with_parent()
    opened = os.open(program, os.O_RDONLY)  # the sandbox's user may not look into its folder
    enter_sandbox(Sandbox(writable=[Path(folder)], executes=True))
    limit_memory(int(memory))
    limit_files(int(memory), 64)
    limit_processor_time(os.cpu_count() or 1)
    os.execve(opened, ["pnnx", INPUT, "fp16=0"], {"PATH": "/usr/bin", "TMPDIR": folder})


if __name__ == "__main__":
    main(*sys.argv[1:])
