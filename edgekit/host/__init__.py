"""The server that answers for devices.
Open Inference Protocol v2 in front of the same Runtime that runs on a board.

with bind("127.0.0.1", 8000) as sock, Repository.open(["digits-host-cpu.ekb"]) as repository:
    code, said = serve(repository, sock, ready=lambda: print("listening"))
"""

from __future__ import annotations

from edgekit.host.api import Api, InferenceRequest
from edgekit.host.connection import Patience
from edgekit.host.errors import ExportError, RequestError, ServeError
from edgekit.host.http1 import HttpLimits
from edgekit.host.models import Repository, ServedModel
from edgekit.host.server import Protection, Server, bind, check_exposure, protected, serve

__all__ = [
    "Api",
    "ExportError",
    "HttpLimits",
    "InferenceRequest",
    "Patience",
    "Protection",
    "Repository",
    "RequestError",
    "ServeError",
    "ServedModel",
    "Server",
    "bind",
    "check_exposure",
    "protected",
    "serve",
]
