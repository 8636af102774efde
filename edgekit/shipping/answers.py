"""What a board may answer over ssh; anything else is ignored or refused.

    probe_files(out)["proc/cpuinfo"], probe_words(out)["home"]
    with answered_by("pi@board"): print(record["p50_ms"])      # SshError where its record is of another form

Rules:
- an answer is untrusted: it names only files that the probe reads, and numbers have a bounded length;
- any other line is ignored, because a login's start-up files may print anything;
- a record is read, and printed, within `answered_by`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from edgekit.shipping.plan import SshError
from edgekit_runtime.system.errors import EdgekitError

_FILE = re.compile(
    r"(?:file|head) /((?:proc/(?:device-tree/(?:model|compatible)|cpuinfo|meminfo)|etc/os-release|bin/sh"
    r"|usr/bin/python3\.[0-9]{1,2}|sys/devices/system/cpu/(?:online|cpufreq/policy[0-9]{1,4}/(?:scaling_max_freq"
    r"|cpuinfo_max_freq|related_cpus|scaling_governor)))) ((?:[0-9a-f]{2}){0,65536})"
)
_WORDS = {
    "python": re.compile(r"3\.[0-9]{1,2}"),
    "libc": re.compile(r"glibc [0-9]{1,3}\.[0-9]{1,3}"),
    "uid": re.compile(r"[0-9]{1,10}"),
    "home": re.compile(r"/[^\x00-\x1f\x7f]{0,1000}"),
    "free_kb": re.compile(r"[0-9]{1,15}"),
    "lacks": re.compile(r"sha256sum|tar|readlink"),
}


def probe_files(out: str) -> dict[str, bytes]:
    """Path without its first slash -> content, of the files that the probe read."""
    found = filter(None, map(_FILE.fullmatch, out.split("\n")))
    return {match[1]: bytes.fromhex(match[2]) for match in found}


def probe_words(out: str) -> dict[str, list[str]]:
    """The probe's other answers by `python`, `libc`, `uid` and so on, each in order."""
    said = [line.partition(" ") for line in out.split("\n")]
    return {
        name: [text for word, _, text in said if word == name and form.fullmatch(text)] for name, form in _WORDS.items()
    }


@contextlib.contextmanager
def answered_by(where: str) -> Iterator[None]:
    """Turn errors of work on a board's record into SshError."""
    try:
        yield
    except EdgekitError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise SshError(
            "it answered with a record of another form",
            where=where,
            do="Is its edgekit of another version? Run edgekit deploy again",
        ) from error
