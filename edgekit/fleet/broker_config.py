"""mosquitto's configuration for a fleet: TLS, one user per board, permissions, limits.

    written = write_broker_config(Path("broker"), BrokerPlan(boards=("porch-1",), certificate=..., key=...))
    written.made            # the users that got a password now

Rules:
- a board has access to its own topics only, and every client needs a user;
- client ids end with something derived from the password, so that no board can take over another's connection;
- users in `passwd` keep their passwords; new ones get one, which `users.txt` has in clear;
- both files are readable by their owner only;
- a slow reader's queue is bounded in bytes, not messages: a large fleet's births are many and small.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgekit.fleet.store.fleet_errors import FleetError
from edgekit_runtime.system.files import write_durably
from edgekit_runtime.telemetry.reporter import ROOT
from edgekit_runtime.telemetry.window import DEVICE_ID

BOARD_WRITES = ("m", "ev", "state", "rep")
BOARD_READS = ("ack", "cmd")
ALERTS = "ek/alerts"
"""Where a server may publish alerts, and below it."""
PREFIX = "homeassistant"
"""Where a server may show its boards to Home Assistant, by whose default it looks there."""
_MOST_QUEUED_BYTES = 64 * 2**20
_MOST_QUEUED = 1_000_000
"""More than these bytes hold. With 0, for no bound, mosquitto 2.0 ends the connection of a client that it forbids
something, instead of keeping it after the receipt."""
_MOST_PACKET_BYTES = 64 * 2**10
_ITERATIONS = 1000  # the passwords are 192 random bits: they cannot be guessed, however fast a guess is


@dataclass(frozen=True)
class BrokerPlan:
    """Users and listener of the broker.

    boards: their ids.
    servers: users that receive everything.
    readers: users that receive alerts only.
    certificate: None for an unencrypted listener.
    viewers: Home Assistant's users.
    """

    boards: Sequence[str] = ()
    servers: Sequence[str] = ("ingest",)
    readers: Sequence[str] = ()
    port: int = 8883
    address: str = ""
    certificate: Path | None = None
    key: Path | None = None
    viewers: Sequence[str] = ()


@dataclass(frozen=True)
class BrokerFiles:
    """made: users with a new password."""

    files: list[Path]
    made: list[str]


def read_boards(path: Path) -> list[str]:
    """Ids of a file, one a line; `#` begins a comment. Raises FleetError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FleetError("cannot read the board ids", where=str(path), do="Write one id per line") from error
    return [word for line in lines if (word := line.partition("#")[0].strip())]


def read_users(path: Path) -> dict[str, str]:
    """Passwords of `users.txt` by user. Raises FleetError."""
    users = dict(line.split(maxsplit=1) for line in read_boards(path) if " " in line)
    if not users:
        raise FleetError("no users in it", where=str(path), do="Pass the users.txt of `edgekit fleet broker-config`")
    return users


def write_broker_config(folder: Path, plan: BrokerPlan) -> BrokerFiles:
    """Write mosquitto.conf, acl, passwd and users.txt. Raises FleetError."""
    users = [*plan.servers, *plan.readers, *plan.viewers, *plan.boards]
    for name in users:
        if not DEVICE_ID.match(name):
            raise FleetError("invalid id", where=name, do="Use 3 to 63 of a-z, 0-9 and -, a letter or digit first")
    if both := {*plan.servers, *plan.readers, *plan.viewers} & set(plan.boards):
        raise FleetError("a board has the same name as a server or reader", where=min(both), do="Rename one of them")
    for path in (plan.certificate, plan.key):
        if path is not None and not path.is_file():
            raise FleetError("no such file", where=str(path), do="Pass the path of a PEM file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder = folder.resolve()
        files = [folder / name for name in ("mosquitto.conf", "acl", "passwd", "users.txt")]
        write_durably(files[0], _settings(folder, plan).encode())
        write_durably(files[1], _rights(plan).encode())
        made = _add_users(files[2], files[3], users)
    except OSError as error:
        what = f"cannot write the broker's files ({error.strerror or error})"
        raise FleetError(what, where=str(folder), do="Pass another folder with --output") from error
    return BrokerFiles(files, made)


def _settings(folder: Path, plan: BrokerPlan) -> str:
    lines = [
        "# Written by `edgekit fleet broker-config`.",
        "per_listener_settings false",
        "allow_anonymous false",
        f"acl_file {folder / 'acl'}",
        f"password_file {folder / 'passwd'}",
        "max_inflight_messages 20",
        f"max_queued_messages {_MOST_QUEUED}",
        f"max_queued_bytes {_MOST_QUEUED_BYTES}",
        "queue_qos0_messages false",
        f"max_packet_size {_MOST_PACKET_BYTES}",
        "persistent_client_expiration 1d",
        "max_keepalive 600",
        "set_tcp_nodelay true",
        "persistence true",
        f"persistence_location {folder}/",
        "autosave_interval 300",
        "",
        f"listener {plan.port} {plan.address}".rstrip(),
    ]
    if plan.certificate is not None:
        lines += [f"certfile {plan.certificate.resolve()}", f"keyfile {(plan.key or plan.certificate).resolve()}"]
        lines.append("tls_version tlsv1.2")
    return "\n".join(lines) + "\n"


def _rights(plan: BrokerPlan) -> str:
    lines = [f"pattern write {ROOT}/%u/{kind}" for kind in BOARD_WRITES]
    lines += [f"pattern read {ROOT}/%u/{kind}" for kind in BOARD_READS]
    for server in plan.servers:
        lines += ["", f"user {server}"]
        lines += [f"topic read {ROOT}/+/{kind}" for kind in BOARD_WRITES]
        lines += [f"topic write {ROOT}/+/{kind}" for kind in (*BOARD_READS, "state")]  # to clear a birth
        lines += [f"topic write {ALERTS}/#", f"topic readwrite {PREFIX}/#"]
    for reader in plan.readers:
        lines += ["", f"user {reader}", f"topic read {ALERTS}/#"]
    for viewer in plan.viewers:  # it says there when it starts
        lines += ["", f"user {viewer}", f"topic read {PREFIX}/#", f"topic write {PREFIX}/status"]
    return "\n".join(lines) + "\n"


def _add_users(passwd: Path, clear: Path, names: Sequence[str]) -> list[str]:
    kept = passwd.read_text() if passwd.exists() else ""
    known = set(re.findall(r"^([^:\n]+):", kept, re.MULTILINE))
    new = {name: secrets.token_urlsafe(24) for name in dict.fromkeys(names) if name not in known}
    if new or not passwd.exists():
        before = clear.read_text() if clear.exists() else ""
        own = "".join(f"{name} {password}\n" for name, password in new.items())
        write_durably(clear, (before + own).encode(), 0o600)
        brokers = "".join(f"{name}:{_hash(password)}\n" for name, password in new.items())
        write_durably(passwd, (kept + brokers).encode(), 0o600)
    return list(new)


def _hash(password: str) -> str:
    """As mosquitto_passwd writes it: PBKDF2 with SHA-512."""
    salt = secrets.token_bytes(12)
    found = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ITERATIONS)
    return f"$7${_ITERATIONS}${base64.b64encode(salt).decode()}${base64.b64encode(found).decode()}"
