"""What a board's owner types, and what it prints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
from downloads import Script, serving
from installed import UNSIGNED, Maker, new_key

from edgekit.packaging.assemble import BundleArtifact, assemble
from edgekit.packaging.bundle_options import BundleTerms
from edgekit.packaging.writer import write_bundle
from edgekit_runtime import open_bundle
from edgekit_runtime.install import DownloadLimits, FetchOptions, install
from edgekit_runtime.system.errors import DownloadError


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return Maker(tmp_path_factory.mktemp("bundles"))


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("EDGEKIT_SELFTEST", "in-process")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("EDGEKIT_TRUST", raising=False)


def invoked(*arguments):
    """In this process, as `main` runs it."""
    from click.testing import CliRunner

    from edgekit.cli.main import cli

    return CliRunner().invoke(cli, [str(one) for one in arguments], prog_name="edgekit")


def test_a_first_install_a_second_and_the_way_back(made, tmp_path):
    root = tmp_path / "camera"
    first = invoked("install", made("1"), "--root", root, "--profile", "x86-64", "--allow-unsigned")
    assert first.exit_code == 0, first.output
    assert "UNSIGNED" in first.output
    assert "gives its 2 golden examples" in first.output
    assert "200 answers, p99" in first.output
    assert "generation 1 is active: tiny version 1" in first.output
    second = invoked("install", made("2"), "--root", root, "--profile", "x86-64", "--allow-unsigned", "--json")
    told = json.loads(second.stdout)
    assert (told["state"], told["generation"]["number"], told["already"]) == ("committed", 2, False)
    assert told["trial"]["seen"]["answers"] == 200
    assert "generation 1 is active again" in invoked("rollback", "--root", root).output
    found = json.loads(invoked("status", "--root", root, "--json").stdout)
    assert (found["state"], found["current"]["number"], found["previous"]["number"]) == ("committed", 1, 2)
    assert "generation 2 is active" in invoked("rollback", "--to", 2, "--root", root).output
    assert found["freed"] is None


@pytest.mark.slow
def test_an_install_names_the_artifact_that_answers(tmp_path, monkeypatch):
    """The first does not give its golden answers here, so the other one does."""
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("EDGEKIT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("EDGEKIT_TUNE", "1")
    monkeypatch.delenv("EDGEKIT_SELFTEST")
    draft, manifest = assemble(tiny.content(alternates=[BundleArtifact(tiny.artifact("onnx-f32"))]))
    wrong = draft.add(np.full(4, 3, np.int8).tobytes())
    forged = tuple(
        replace(golden, answers=(replace(golden.answers[0], outputs={"probs": wrong}), *golden.answers[1:]))
        for golden in manifest.golden
    )
    write_bundle(tmp_path / "two.ekb", draft, replace(manifest, golden=forged))
    done = invoked("install", tmp_path / "two.ekb", "--root", tmp_path / "camera", "--profile", "x86-64",
                   "--allow-unsigned")  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "generation 1 is active: tiny version 1 (onnx-f32, " in done.output
    assert "generation 1: tiny version 1 (onnx-f32, " in invoked("status", tmp_path / "camera").output
    told = json.loads(invoked("status", tmp_path / "camera", "--json").stdout)
    assert (told["recipe"], told["previous_recipe"]) == ("onnx-f32", None)
    for name, shown in (("other", "  active     "), ("third", "  rollback   to ")):
        write_bundle(tmp_path / f"{name}.ekb", draft, replace(manifest, golden=forged, version=name))
        assert (
            invoked("install", tmp_path / f"{name}.ekb", "--root", tmp_path / "camera", "--allow-unsigned").exit_code
            == 0
        )
        line = f"{shown}generation 2: tiny version other (onnx-f32, "
        assert line in invoked("status", tmp_path / "camera").output


def test_status_says_what_was_removed_by_itself_and_what_waits_for_an_application(made, tmp_path):
    root = tmp_path / "camera"
    for version in ("1", "2"):
        assert (
            invoked("install", made(version), "--root", root, "--profile", "x86-64", "--allow-unsigned").exit_code == 0
        )
    with open_bundle(root) as model:
        assert model.describe()["version"] == "2"
        for version in ("3", "4"):
            done = invoked("install", made(version), "--root", root, "--allow-unsigned")
            assert done.exit_code == 0, done.output
        shown = invoked("status", "--root", root).stdout
        assert "  in use     generations/2" in shown
        assert "  freed      2 removed, " in shown, "generation 1 and its bundle"
    found = json.loads(invoked("status", "--root", root, "--json").stdout)
    assert (found["in_use"], found["freed"]["removed"]) == ([], 2)
    assert sorted(path.name for path in (root / "generations").iterdir()) == ["3", "4"]


def test_what_was_taken_unsigned_says_so_in_every_report(made, tmp_path):
    """S9"""
    root, (key, public) = tmp_path / "camera", new_key(tmp_path)
    invoked("install", made("1"), "--root", root, "--profile", "x86-64", "--allow-unsigned")
    assert invoked("install", made("2", key=key), "--root", root, "--trust", public).exit_code == 0
    assert "rollback   to generation 1" in (shown := invoked("status", "--root", root).output)
    assert ", UNSIGNED" in shown
    reports = {
        "rollback": invoked("rollback", "--root", root),
        "rollback --to": invoked("rollback", "--to", 1, "--root", root),
        "status": invoked("status", "--root", root),
        "inspect": invoked("inspect", root),
        "verify": invoked("verify", root, "--replay", "--allow-unsigned"),
        "install": invoked("install", made("1"), "--root", root, "--allow-unsigned"),
    }
    why = "taken because of --allow-unsigned; what was found then: no trusted keys are configured on this machine"
    for name, report in reports.items():
        assert report.exit_code == 0, (name, report.output)
        assert "UNSIGNED" in report.output, name
        assert why in report.output, name
    told = json.loads(invoked("verify", root, "--replay", "--allow-unsigned", "--json").stdout)
    assert (told["unsigned"], told["vouched"]) == (True, f"UNSIGNED: {why}")
    assert json.loads(invoked("inspect", root, "--json").stdout)["installed"]["generation"]["vouched"].startswith(
        "UNSIGNED"
    )
    events = [json.loads(line) for line in (root / "events.jsonl").read_text().splitlines()]
    assert events[-1]["event"] == "rolled-back"
    assert events[-1]["what"] == f"UNSIGNED: {why}"


def test_a_status_never_says_trusted_of_what_is_trusted_no_more(made, tmp_path, monkeypatch):
    key, public = new_key(tmp_path)
    root = tmp_path / "r"
    invoked("install", made("1", key=key), "--root", root, "--trust", public, "--profile", "x86-64")
    assert (
        f"signed by alice.pub.pem ({key.keyid[:8]}), trusted when it was installed"
        in invoked("status", "--root", root).output
    )


def test_a_signed_one_needs_no_word_from_the_owner(made, tmp_path):
    key, public = new_key(tmp_path)
    done = invoked("install", made("1", key=key), "--root", tmp_path / "r", "--trust", public, "--profile", "x86-64")
    assert done.exit_code == 0, done.output
    assert "UNSIGNED" not in done.output
    shown = invoked("status", "--root", tmp_path / "r").output
    assert f"trusts     alice.pub.pem ({key.keyid[:8]}), of which this root keeps a copy" in shown


def test_a_trial_by_the_application_says_what_is_next(made, tmp_path):
    root = tmp_path / "r"
    done = invoked("install", made("1"), "--root", root, "--profile", "x86-64", "--allow-unsigned", "--trial", "app")
    assert "generation 1 is on trial" in done.output
    assert f"edgekit install --commit --root {root}" in done.output
    assert f"edgekit rollback --root {root}" in done.output
    assert "0 of 200 answers, 0 of 60 s" in invoked("status", "--root", root).output
    assert "generation 1 is active" in invoked("install", "--commit", "--root", root).output


def test_a_refusal_is_told_by_status_as_well(made, tmp_path):

    root = tmp_path / "r"
    install = ("install", "--root", root, "--profile", "x86-64", "--allow-unsigned")
    assert invoked(*install, made("2", BundleTerms(rollout_seq=2))).exit_code == 0
    refused = invoked(*install, made("1", BundleTerms(rollout_seq=1)))
    assert refused.exception.code == "downgrade"
    shown = invoked("status", "--root", root).output
    assert "accepts    rollout_seq 3 and higher" in shown
    assert "its rollout_seq 1 is older than 2" in shown
    assert "(downgrade)" in shown


def test_a_board_is_found_where_none_is_named(made, tmp_path):
    from edgekit_profiles import open_catalogue
    from edgekit_profiles.detect import detect
    from edgekit_profiles.facts import read_facts

    found = detect(read_facts(None), open_catalogue(()))
    here = found.profile.name if found.profile is not None and found.sure in ("certain", "likely") else None
    done = invoked("install", made("1"), "--root", tmp_path / "r", "--allow-unsigned")
    if here in ("x86-64", None):
        assert done.exit_code == 0, done.output
        assert ("this board is not known" in done.output) == (here is None)
    else:
        assert f"this board is {here}" in str(done.exception)


def test_a_machine_that_shows_its_architecture_alone_may_be_a_host_of_it():
    from edgekit.cli.install import board_of

    assert board_of("x86-64").profiles == ("x86-64", "host-cpu", "host-gpu")
    assert [board_of(name).profiles for name in ("host-cpu", "raspberry-pi-4", "cortex-a72", "my-own")] == [
        ("host-cpu",),
        ("raspberry-pi-4",),
        ("cortex-a72",),
        ("my-own",),
    ]


def test_a_root_remembers_what_the_board_is_and_says_where_it_looks_like_another(made, tmp_path, monkeypatch):
    from edgekit.cli import install as module

    root = tmp_path / "r"
    first = invoked("install", made("1"), "--root", root, "--profile", "x86-64", "--allow-unsigned")
    assert "board      x86-64, which this root remembers\n" in first.stdout
    assert "board      x86-64, as `edgekit install --profile` said" in invoked("status", "--root", root).stdout
    monkeypatch.setattr(module, "_detected", lambda: ("raspberry-pi-4", "its model name"))
    second = invoked("install", made("2"), "--root", root, "--allow-unsigned")
    assert second.exit_code == 0, second.output
    assert "remembers the board as x86-64, and goes by that; it looks like raspberry-pi-4" in second.stderr
    assert "--profile raspberry-pi-4 changes it" in second.stderr
    assert "board " not in second.stdout
    monkeypatch.setattr(module, "_detected", lambda: (None, "nothing"))
    third = invoked("install", made("1"), "--root", root, "--allow-unsigned", "--json")
    assert json.loads(third.stdout)["profile"] == "x86-64"
    assert "not known" not in third.stderr
    assert json.loads(invoked("status", "--root", root, "--json").stdout)["profile"] == "x86-64"
    named = invoked("verify", root, "--allow-unsigned", "--json")
    (board,) = [one for one in json.loads(named.stdout)["checks"] if one["check"] == "board"]
    assert "this board is x86-64" in board["told"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("raspbery-pi-4", "Unknown profile 'raspbery-pi-4'. Did you mean raspberry-pi-4"),
        ("rpi4", "Did you mean --profile raspberry-pi-4?"),
    ],
)
@pytest.mark.parametrize("command", ["install", "verify"])
def test_a_misspelt_profile_is_refused_with_the_near_ones(made, tmp_path, command, given, told):
    place = ("--root", tmp_path / "r") if command == "install" else ()
    done = invoked(command, made("1"), *place, "--profile", given, "--allow-unsigned")
    assert done.exception.code == "incompatible"
    assert told in done.exception.do


def test_another_name_for_the_board_is_told_with_the_one_before(made, tmp_path):
    root, both = tmp_path / "r", made("1", BundleTerms(compatible=("x86-64", "raspberry-pi-4")))
    for name, told in {"x86-64": "", "raspberry-pi-4": "; before, it was x86-64"}.items():
        done = invoked("install", both, "--root", root, "--profile", name, "--allow-unsigned")
        assert f"board      {name}, which this root remembers{told}\n" in done.stdout


def test_status_keeps_an_interrupted_download_and_another_install_drops_it(made, tmp_path):
    root, at_once = tmp_path / "r", FetchOptions(DownloadLimits(tries=2), sleep=lambda seconds: None)
    with serving(Script(made("1").read_bytes(), cuts=[700, 0, 0])) as url, pytest.raises(DownloadError):
        install(url, root, replace(UNSIGNED, fetching=at_once))
    shown = invoked("status", "--root", root).stdout
    assert f"install    of {url}: fetching" in shown
    assert "the same install resumes it, another one removes it" in shown
    assert [path.suffix for path in (root / "incoming").iterdir() if path.suffix == ".part"] == [".part"]
    assert invoked("install", made("2"), "--root", root, "--profile", "x86-64", "--allow-unsigned").exit_code == 0
    found = json.loads(invoked("status", "--root", root, "--json").stdout)
    assert found["unfinished"] is None
    assert not list((root / "incoming").iterdir())


def test_a_key_that_the_application_would_not_find_is_spoken_of(tmp_path, monkeypatch):
    import tiny

    from edgekit_runtime.bundle.secrets import Secret

    key = bytes(range(7, 39))
    (tmp_path / "camera.key").write_text(key.hex() + "\n")
    (tmp_path / "camera.key").chmod(0o600)
    bundle = tiny.bundle(tmp_path, secret=Secret([key]))
    given = ("--profile", "x86-64", "--allow-unsigned", "--secret", f"file:{tmp_path / 'camera.key'}")
    told = (
        "key        not remembered: the application needs it too, as /etc/edgekit/secret, "
        "by EDGEKIT_SECRET=file:PATH, or "
    )
    done = invoked("install", bundle, "--root", tmp_path / "1", *given)
    assert done.exit_code == 0, done.output
    assert told in done.stdout
    monkeypatch.setenv("EDGEKIT_SECRET", f"file:{tmp_path / 'camera.key'}")
    assert "not remembered" not in invoked("install", bundle, "--root", tmp_path / "2", *given).stdout


USAGE = {
    "no root": ("install", "x.ekb"),
    "no bundle": ("install", "--root", "r"),
    "an empty name": ("install", "", "--root", "r"),
    "another kind of trial": ("install", "x.ekb", "--root", "r", "--trial", "later"),
    "not a name of a board": ("install", "x.ekb", "--root", "r", "--profile", ""),
    "generation 0": ("rollback", "--to", "0", "--root", "r"),
    "a bundle and a commit": ("install", "x.ekb", "--commit", "--root", "r"),
    "a commit of another trial": ("install", "--commit", "--trial", "app", "--root", "r"),
}


@pytest.mark.parametrize("case", USAGE)
def test_usage(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoked(*USAGE[case])
    assert done.exit_code == 2
    assert list(tmp_path.glob("r")) == []


def test_progress_counts_in_the_megabytes_of_the_result():
    """11,028,032 bytes are 11.0 MB there and 11 here, not 12."""
    from edgekit.cli.install import _Bar

    seen = []
    bar = _Bar(lambda *told: seen.append(told))
    for done in (0, 5_900_000, 11_020_000, 11_028_032):
        bar("fetch", done, 11_028_032)
    assert seen == [("fetch (MB)", done, 11) for done in (0, 5, 10, 11)]
