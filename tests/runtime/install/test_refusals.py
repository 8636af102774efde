"""Every reason to refuse a bundle: a typed error of one line, and one event.

Nothing is left behind, and `current` is as it was.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
from downloads import Script, serving
from installed import BOARD, QUICK, UNSIGNED, current, events, names, new_key

from edgekit.packaging.bundle_options import BundleTerms
from edgekit_runtime import EdgekitError
from edgekit_runtime.bundle.manifest import Promise
from edgekit_runtime.bundle.secrets import Secret
from edgekit_runtime.bundle.trust_store import parse_time
from edgekit_runtime.install import BoardIdentity, InstallOptions, TrialOptions, status


def at(moment: str):
    return lambda: parse_time(moment)


SIGNED_ONLY = replace(UNSIGNED, allow_unsigned=False)
NOW = replace(UNSIGNED, clock=at("2027-01-15T00:00:00Z"))
BAD_PROMISE = Promise(p99_ms=0.0001)

REFUSED = {
    # case: (terms, promise, how it is asked for, code, what the message says)
    "nobody was ever trusted here": (BundleTerms(), None, SIGNED_ONLY, "no-trust-store", "no trusted keys"),
    "an older rollout_seq": (BundleTerms(rollout_seq=6), None, UNSIGNED, "downgrade", "6 is older than 7"),
    "no rollout_seq after there was one": (BundleTerms(), None, UNSIGNED, "downgrade", "it has no rollout_seq"),
    "the same rollout_seq, another bundle": (BundleTerms(rollout_seq=7), None, UNSIGNED, "rollout-seq-reused",
        "of another bundle"),
    "expired": (
        BundleTerms(rollout_seq=8, expires="2027-01-01T00:00:00Z"), None, NOW, "expired", "clock says 2027-01-15"
    ),
    "not yet valid": (
        BundleTerms(rollout_seq=8, not_before="2027-02-01T00:00:00Z"), None, NOW, "not-yet-valid",
        "clock says 2027-01-15"
    ),
    "another board": (
        BundleTerms(rollout_seq=8), None, replace(UNSIGNED, board=BoardIdentity(("raspberry-pi-4",))), "incompatible",
        "this board is raspberry-pi-4"
    ),
    "another architecture": (
        BundleTerms(rollout_seq=8), None, replace(UNSIGNED, board=BoardIdentity(machine="aarch64")), "incompatible",
        "this machine is aarch64"
    ),
    "slower than promised": (BundleTerms(rollout_seq=8), BAD_PROMISE, UNSIGNED, "trial-failed",
        "took longer than the 0.0001 ms promised"),
    "larger than promised": (
        BundleTerms(rollout_seq=8), Promise(peak_mb=1.0), UNSIGNED, "trial-failed", "and 1 were promised"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_is_refused_and_changes_nothing(case, made, put, root):
    """S1 S19"""
    terms, promise, asked, code, says = REFUSED[case]
    put(made("1", BundleTerms(rollout_seq=7)))
    before, objects = len(events(root)), names(root / "objects")
    with pytest.raises(EdgekitError) as caught:
        put(made("2", terms, promise), asked)
    assert (caught.value.code, says in str(caught.value)) == (code, True), caught.value
    assert "\n" not in str(caught.value)
    assert caught.value.do
    assert current(root) == "generations/1"
    told = events(root)[before:]
    assert [(one["event"], one["code"]) for one in told] == [("refused", code)]
    assert names(root / "objects") == objects
    assert names(root / "incoming") == []
    assert names(root / "generations") == ["1"]
    found = status(root)
    assert (found.current.number, found.unfinished) == (1, None)


@pytest.mark.parametrize("given", ["a path", "a URL with a password"])
@pytest.mark.parametrize("case", ["slower than promised", "damaged", "encrypted"])
def test_a_refusal_names_what_was_given_and_nothing_that_is_gone(case, given, made, put, root, tmp_path):
    bundle = made("2", None, BAD_PROMISE if case == "slower than promised" else None)
    if case == "damaged":
        data = bytearray(bundle.read_bytes())
        data[-70] ^= 1
        bundle = tmp_path / "damaged.ekb"
        bundle.write_bytes(data)
    elif case == "encrypted":
        bundle = tiny.bundle(tmp_path, secret=Secret([bytes(range(32))]))
    with contextlib.ExitStack() as stack:
        source = str(bundle)
        if given != "a path":
            url = stack.enter_context(serving(Script(bundle.read_bytes())))
            source = url.replace("http://", "http://anna:geheim@")
        with pytest.raises(EdgekitError) as caught:
            put(source)
    assert caught.value.where.startswith(source.replace("anna:geheim@", ""))
    for told in (str(caught.value), status(root).failure.what, events(root)[-1]["what"]):
        assert str(root) not in told
        assert "geheim" not in told


CLOCKS = {
    "in 1970: judged by the day this was written": ("1970-01-01T00:00:10Z", "2026-01-01T00:00:00Z", "expired"),
    "in 2100: it says so": ("2100-01-01T00:00:00Z", "2030-01-01T00:00:00Z", "expired"),
    "right": ("2027-01-01T00:00:00Z", "2030-01-01T00:00:00Z", ""),
}


@pytest.mark.parametrize("case", CLOCKS)
def test_a_clock_that_is_wrong_is_named(case, made, put, root):
    """S10"""
    now, expires, code = CLOCKS[case]
    asked = replace(UNSIGNED, clock=at(now))
    if not code:
        assert put(made("1", BundleTerms(expires=expires)), asked).state == "committed"
        return
    with pytest.raises(EdgekitError) as caught:
        put(made("1", BundleTerms(expires=expires)), asked)
    assert caught.value.code == code
    assert now in str(caught.value)


def test_a_clock_that_was_set_back_opens_nothing_that_had_expired(made, put, root):
    """S10"""
    put(made("1"), replace(UNSIGNED, clock=at("2027-06-01T00:00:00Z")))
    with pytest.raises(EdgekitError) as caught:
        put(made("2", BundleTerms(expires="2027-05-01T00:00:00Z")), replace(UNSIGNED, clock=at("2027-04-01T00:00:00Z")))
    assert caught.value.code == "expired"
    assert "the last time seen on this board, 2027-06-01" in str(caught.value)


def test_a_clock_that_was_in_2100_for_a_day_spoils_nothing_for_later(made, put, root):
    """S10"""
    put(made("1"), replace(UNSIGNED, clock=at("2100-01-01T00:00:00Z")))
    assert put(made("2", BundleTerms(expires="2027-05-01T00:00:00Z")), NOW).state == "committed"


def test_a_clock_that_jumps_back_in_the_middle_decides_nothing(made, put, root):
    times = iter([parse_time("2027-06-01T00:00:00Z")] * 4)
    later = replace(UNSIGNED, clock=lambda: next(times, parse_time("2020-01-01T00:00:00Z")))
    assert put(made("1", BundleTerms(not_before="2027-01-01T00:00:00Z")), later).state == "committed"


class TestSignatures:
    @pytest.fixture
    def trusting(self, tmp_path, made, put):
        key, public = new_key(tmp_path)
        asked = InstallOptions(trust=(public,), board=BOARD, proving=QUICK)
        put(made("1", key=key), asked)
        return key, asked

    def test_unsigned(self, made, put, root, trusting):
        self.refused(put, root, made("2"), trusting[1], "unsigned")

    def test_signed_by_somebody_else(self, made, put, root, trusting, tmp_path):
        other, _ = new_key(tmp_path, "mallory")
        self.refused(put, root, made("2", key=other), trusting[1], "unknown-key")

    def test_changed_after_it_was_signed(self, made, put, root, trusting, tmp_path):
        data = bytearray(made("2", key=trusting[0]).read_bytes())
        data[-70] ^= 1
        bad = tmp_path / "bad.ekb"
        bad.write_bytes(bytes(data))
        self.refused(put, root, bad, trusting[1], "bundle-integrity")

    def refused(self, put, root, path, asked, code):
        with pytest.raises(EdgekitError) as caught:
            put(path, asked)
        assert caught.value.code == code
        assert current(root) == "generations/1"
        assert len(names(root / "objects")) == 1


FILES = {
    "empty": (b"", "bundle-format"),
    "no bundle": (b"PK\x03\x04" + bytes(100), "bundle-format"),
    "cut inside its head": (0.05, "bundle-integrity"),
    "cut inside a blob": (0.9, "download-size"),
    "with something after its end": (1.5, "download-size"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_no_whole_bundle(case, made, put, root, tmp_path):
    put(made("1"))
    content, code = FILES[case]
    if isinstance(content, float):
        whole = made("2").read_bytes()
        content = (whole + bytes(len(whole)))[: int(len(whole) * content)]
    bad = tmp_path / "bad.ekb"
    bad.write_bytes(content)
    with pytest.raises(EdgekitError) as caught:
        put(bad)
    assert caught.value.code == code, caught.value
    assert current(root) == "generations/1"
    assert names(root / "incoming") == []


def test_a_pipe_is_no_bundle(put, root, tmp_path):
    os.mkfifo(tmp_path / "pipe.ekb")
    with pytest.raises(EdgekitError, match="not a regular file"):
        put(tmp_path / "pipe.ekb")


def child_that(program: str, silence_s: float = 60.0) -> TrialOptions:
    """The self-test's child replaced by a real one that behaves so."""
    from edgekit_runtime.system.children import run

    return replace(QUICK, silence_s=silence_s, run=lambda command, **how: run([sys.executable, "-c", program], **how))


CHILDREN = {
    "hangs": ("import time; time.sleep(60)", 0.5, "selftest", "did not respond"),
    "crashes": ("import os; os.kill(os.getpid(), 11)", 60.0, "selftest", "SIGSEGV"),
    "is killed": ("import os; os.kill(os.getpid(), 9)", 60.0, "selftest", "SIGKILL"),
    "ends without a word": ("raise SystemExit(3)", 60.0, "install", "ended without a result"),
}


@pytest.mark.parametrize("case", CHILDREN)
def test_a_self_test_that(case, made, put, root, monkeypatch):
    """S16"""
    put(made("1"))
    monkeypatch.delenv("EDGEKIT_SELFTEST")
    program, silence_s, code, says = CHILDREN[case]
    with pytest.raises(EdgekitError, match=says) as caught:
        put(made("2"), proving=child_that(program, silence_s))
    assert caught.value.code == code
    assert current(root) == "generations/1"
    assert len(names(root / "objects")) == 1
    assert [one["event"] for one in events(root)] == ["committed", "refused"]


def test_golden_answers_that_differ_here_are_found_by_the_self_test(made, put, root):
    """The other bundle's answers in place of its own, all digests right."""
    import numpy as np
    import tiny

    from edgekit.packaging.assemble import assemble
    from edgekit.packaging.writer import write_bundle

    draft, manifest = assemble(tiny.content(version="9"))
    golden = manifest.golden
    swapped = [replace(one, answers=other.answers) for one, other in zip(golden, golden[::-1], strict=True)]
    path = root.parent / "lying.ekb"
    write_bundle(path, draft, replace(manifest, golden=tuple(swapped)), [])
    assert np is not None
    with pytest.raises(EdgekitError) as caught:
        put(path)
    assert caught.value.code == "selftest"
    assert current(root) is None


DISK = {"full": (errno.ENOSPC, "disk-full"), "read-only": (errno.EROFS, "read-only"), "broken": (errno.EIO, "storage")}


@pytest.mark.parametrize("case", DISK)
@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_disk_that_is(case, call, made, put, root, monkeypatch):
    """S17: Every single call refused in turn: always the typed error, and what answered before answers."""
    number, code = DISK[case]
    put(made("1"))
    second = made("2")
    name = "fsync" if call == "fsync" else "replace"
    real, left = getattr(os, name), [0]

    def refusing(*arguments, **options):
        left[0] -= 1
        if left[0] == 0:
            raise OSError(number, os.strerror(number))
        return real(*arguments, **options)

    for at_call in range(1, 60):
        left[0] = at_call
        with monkeypatch.context() as patched:
            patched.setattr(os, name, refusing)
            try:
                put(second)
            except EdgekitError as error:
                assert error.code == code, error  # noqa: PT017 - the last round raises nothing
            else:
                break
        assert status(root).current.version in ("1", "2")
        assert current(root) == f"generations/{status(root).current.number}"
    assert left[0] > 0, "every call was refused once"
    assert status(root).current.version == "2"


def test_no_room_is_said_before_anything_is_fetched(made, put, root, monkeypatch):
    put(made("1"))
    real = os.statvfs

    def nearly_full(path):
        found = real(path)
        return type("Room", (), {"f_bavail": 0, "f_frsize": found.f_frsize})()

    monkeypatch.setattr(os, "statvfs", nearly_full)
    with pytest.raises(EdgekitError, match="bytes are needed, 0 are free") as caught:
        put(made("2"))
    assert caught.value.code == "disk-full"
    assert names(root / "incoming") == []


def test_a_folder_of_something_else_is_no_root(made, put, root):
    root.mkdir()
    (root / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(EdgekitError, match=r"holds other things \(holiday\.jpg\)") as caught:
        put(made("1"))
    assert caught.value.code == "install-root"
    assert names(root) == ["holiday.jpg"]


@pytest.mark.parametrize("command", ["status", "activate", "rollback", "collect"])
def test_nothing_is_asked_of_what_is_no_root(command, root):
    import edgekit_runtime.install as room

    with pytest.raises(EdgekitError) as caught:
        getattr(room, command)(root)
    assert caught.value.code == "install-root"
    assert not root.exists()


def test_events_are_bounded_and_a_torn_line_costs_no_other(made, put, root):
    from edgekit_runtime.install.layout import MOST_BYTES, Events

    file = root.parent / "events.jsonl"
    told = Events(file)
    for number in range(3000):
        told.append("refused", what="x" * 400, number=number)
    assert file.stat().st_size < MOST_BYTES
    read = told.read()
    assert read[-1]["number"] == 2999
    assert [one["number"] for one in read] == list(range(read[0]["number"], 3000))
    with file.open("ab") as stream:
        stream.write(b'{"at": "20')
    told.append("committed")
    assert told.read()[-1]["event"] == "committed"
    assert json.loads(file.read_text().splitlines()[-1])["event"] == "committed"
    assert isinstance(file, Path)
