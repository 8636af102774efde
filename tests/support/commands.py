"""`edgekit ARGUMENTS` as a person runs it, in a process of its own that is there in milliseconds.

A server that has imported the command line and the engines, and done nothing else, forks one for each command; a second
one, which has imported Keras as well, those that train. What a start costs and imports is the business of tests that
start Python themselves.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

IMPORTED = ("edgekit.cli.main", "numpy", "PIL.Image", "cryptography", "onnxruntime", "ai_edge_litert.interpreter")
TRAINS = ("compress",)
_servers: dict[tuple[int, str, bool], str] = {}
processor_s = 0.0
"""What all commands of this process took, with the children that they waited for."""


def run(
    arguments: Sequence[str], cwd: Path, environ: Mapping[str, str], timeout_s: float, python: str = sys.executable
) -> tuple[int, str, str]:
    """Exit code (minus the signal, if one ended it), stdout and stderr. On a TimeoutError it has ended the command."""
    global processor_s
    with socket.socket(socket.AF_UNIX) as link, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        link.settimeout(timeout_s)
        link.connect(_address(python, any(name in TRAINS for name in arguments[:1])))
        job = {"arguments": list(arguments), "cwd": str(cwd), "environ": dict(environ)}
        socket.send_fds(link, [b"\n"], [out.fileno(), err.fileno()])
        link.sendall(json.dumps(job).encode() + b"\n")
        replies = link.makefile("rb")
        pid = int(replies.readline())
        try:
            code, taken = replies.readline().split()
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    processor_s += float(taken)
    return int(code), texts[0], texts[1]


def _address(python: str, trains: bool) -> str:
    """The socket of this process's server, which is started by the first call."""
    mine = os.getpid(), python, trains
    if mine not in _servers:
        address = str(Path(tempfile.mkdtemp(prefix="commands-")) / "socket")
        command = [python, __file__, address, *(["trains"] if trains else [])]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        atexit.register(server.kill)
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        _servers[mine] = address
    return _servers[mine]


def serve(address: str, *, trains: bool) -> None:
    """Returns in the process of a command; in the server it ends with the process that started it."""
    for name in IMPORTED:
        try:
            importlib.import_module(name)
        except ImportError:  # an engine that is not installed here
            continue
    if trains and importlib.util.find_spec("tensorflow") is not None:  # without it the command says what it needs
        importlib.import_module("edgekit_converters.recipe.foreign_code").import_keras()
    parent = os.getppid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        listener.settimeout(5.0)
        os.write(1, b"ready\n")
        while os.getppid() == parent:
            try:
                link, _ = listener.accept()
            except TimeoutError:
                continue
            with link:
                if os.fork() == 0 and _is_command(link):
                    return
    os._exit(0)


def _is_command(link: socket.socket) -> bool:
    """In a fork of the server, once: True in the command's process. The other waits for it and sends its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, files, _, _ = socket.recv_fds(link, 1, 2)
    job = json.loads(link.makefile("rb").readline())
    pid = os.fork()
    if pid:
        link.sendall(b"%d\n" % pid)
        _, status, used = os.wait4(pid, 0)
        link.sendall(f"{os.waitstatus_to_exitcode(status)} {used.ru_utime + used.ru_stime:.2f}\n".encode())
        os._exit(0)
    for number, file in enumerate(files, start=1):
        os.dup2(file, number)
        os.close(file)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["environ"])
    sys.argv = ["edgekit", *job["arguments"]]
    return True


if __name__ == "__main__":
    sys.path[0] = ""
    serve(sys.argv[1], trains="trains" in sys.argv[2:])
    from edgekit.cli.main import main

    main()
