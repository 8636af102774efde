"""The journal of an install root: what a power cut, a disk or a person may have made of it. An input is the file's
bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from random import Random

from edgekit_runtime.install.journal import AcceptedSequence, Attempt, Failure, Journal, parse_journal
from edgekit_runtime.system.errors import InstallError
from fuzz.octets import altered
from fuzz.target import Target
from fuzz.trees import changed, spelt


def _read(data: bytes) -> None:
    found = parse_journal(data.decode("utf-8", "surrogateescape"), "x")
    assert parse_journal(found.text(), "again") == found
    assert all(number < found.next for number in found.kept)
    assert found.answering in (None, found.current, found.on_trial)


@cache
def _seeds() -> Sequence[bytes]:
    at, digest = "2026-11-22T00:00:00Z", "0" * 64
    attempt = Attempt("selftest", "/srv/net.ekb", "here", at, digest, digest, digest, 7, ("a" * 64,), 3, 1)
    full = Journal(
        1,
        4,
        2,
        1,
        AcceptedSequence(7, digest, ("a" * 64,)),
        1.7e9,
        attempt,
        Failure("selftest", "it differs", "selftest", at, "net.ekb", 2),
    )
    return [one.text().encode() for one in (Journal(), full)]


def _mutate(data: bytes, random: Random) -> bytes:
    try:
        return spelt(changed(json.loads(data), random), random)
    except ValueError:
        return altered(data, random)


def journal() -> Target:
    return Target("journal", _read, (InstallError,), _seeds, _mutate, 1 << 13)
