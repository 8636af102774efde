"""A scripted edgekit host of the tiny model, which always answers RED; see `scripted`."""

from __future__ import annotations

import socket
from collections.abc import Callable

import numpy as np
from scripted import Asked, http

from edgekit_runtime.bundle.manifest import Manifest
from edgekit_runtime.remote.oip import InferResponse, encode_response


class TinyHost:
    """fault: answers inferences in the host's place, while it is not None. inferred: inferences so far, those too.

    before: called at each inference. parameters: of the last one. pinged: questions whether it is ready.

    ready: answers these, where it returns something.
    """

    def __init__(self, manifest: Manifest, before: Callable[[], object] = lambda: None) -> None:
        self.manifest, self.before = manifest, before
        self.fault: Callable[[socket.socket], bytes | None] | None = None
        self.inferred = self.pinged = 0
        self.ready: Callable[[], bytes | None] = lambda: None
        self.parameters: dict[str, object] = {}

    def __call__(self, asked: Asked, sock: socket.socket) -> bytes | None:
        if asked.line.startswith("POST"):
            self.inferred += 1
            self.parameters = asked.json.get("parameters", {})
            self.before()
            return self._answer() if self.fault is None else self.fault(sock)
        if asked.line.split()[1].endswith("/ready"):
            self.pinged += 1
            said = self.ready()
            if said is not None:
                return said
        if asked.line.split()[1] == "/v2":
            return http(200, {"name": "edgekit", "extensions": ["binary_tensor_data"]})
        ids = {"model_id": self.manifest.model_id, "contract_digest": self.manifest.contract_digest}
        return http(200, {"name": "tiny", "edgekit": ids})

    def _answer(self) -> bytes:
        probs = {"probs": np.array([[1, 0, 0, 0]], np.float32)}
        wire = encode_response(InferResponse(probs, "tiny", "1"), binary=["probs"])
        return http(200, wire.body(), *(f"{k}: {v}" for k, v in wire.headers.items()))
