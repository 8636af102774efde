"""llama.cpp's own HTTP server, which speaks OpenAI's protocol, in a process of its own.

with llama_server.serving(model_file) as url: ...
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from edgekit_runtime.system.children import environment

_SERVE = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.kv_unified = sys.argv[1], 4096, int(sys.argv[2]), True
params.hostnames, params.port, params.verbosity = ["127.0.0.1"], 0, -1
params.cache_ram_mib, params.warmup, params.fit_params = 0, False, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def serving(model: Path, slots: int = 8) -> Iterator[str]:
    """Yields http://127.0.0.1:port; slots: how many answers it batches."""
    command = [sys.executable, "-c", _SERVE, str(model), str(slots)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment()
    ) as server:
        try:
            yield next(line.strip() for line in server.stdout if line.startswith("http"))
        finally:
            server.kill()
