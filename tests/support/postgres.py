"""A real PostgreSQL on a loopback port of its own, in a temporary folder. Each test gets a schema of its own in it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

from parts import missing
from ports import free_port


class Postgres:
    """`with Postgres() as server: server.url()`. Where root runs the tests, it runs as `postgres` or `nobody`."""

    def __init__(self) -> None:
        if find_spec("psycopg") is None:
            missing("psycopg, the client library", "pip install 'psycopg[binary]>=3.1'")
        found = [Path(initdb).parent for initdb in (shutil.which("initdb"),) if initdb]
        found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: folder.parent.name)
        if not found or not (found[-1] / "initdb").exists():
            missing("postgresql, the server", "sudo apt-get install postgresql")
        self._bin = found[-1]
        self.port = free_port()
        self._schemas = 0

    def start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="edgekit-pg-"))
        self._as: dict[str, int] = {}
        if os.geteuid() == 0:
            names = {entry.pw_name: entry for entry in pwd.getpwall()}
            user = names.get("postgres") or names["nobody"]
            self._as = {"user": user.pw_uid, "group": user.pw_gid}
            os.chown(self._folder, user.pw_uid, user.pw_gid)
        self._run("initdb", "-D", f"{self._folder}/data", "-U", "fleet", "-A", "trust", "--no-sync", "-E", "UTF8")
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        self._options = options
        self.again()

    def again(self) -> None:
        self._run(
            "pg_ctl", "-D", f"{self._folder}/data", "-w", "-l", f"{self._folder}/log", "-o", self._options, "start"
        )

    def stop(self, how: str = "immediate") -> None:
        """Every connection ends."""
        self._run("pg_ctl", "-D", f"{self._folder}/data", "-m", how, "-w", "stop")

    def _run(self, command: str, *arguments: str) -> None:
        with (self._folder.parent / f"{self._folder.name}.{command}.log").open("wb") as log:
            done = subprocess.run(
                [self._bin / command, *arguments], cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                timeout=120, **self._as,
            )  # fmt: skip
        assert done.returncode == 0, Path(log.name).read_text()
        Path(log.name).unlink()

    def url(self) -> str:
        """Of a new, empty schema."""
        import psycopg

        self._schemas += 1
        name = f"test_{os.getpid()}_{self._schemas}"
        base = f"postgresql://fleet:secret@127.0.0.1:{self.port}/postgres"
        with psycopg.connect(base, autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA "{name}"')
        return f"{base}?options=-csearch_path%3D{name}"

    def __enter__(self) -> Postgres:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
