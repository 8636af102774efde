"""What an error says is one line, whatever a hostile file wrote into its names."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import pickle
import shlex
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_runtime.system.errors import MOST_TEXT, BundleError, EdgekitError, install_command

HOSTILE = {
    "a second line": ("net\nerror: all is well", r"net\nerror: all is well"),
    "a line that is overwritten": ("net\rok", r"net\rok"),
    "a terminal's escape sequence": ("\x1b[2Jnet", r"\x1b[2Jnet"),
    "a turned direction of writing": ("net\u202egpj.exe", r"net\u202egpj.exe"),
    "half a surrogate pair": ("net\ud800", r"net\ud800"),
    "other people's letters": ("Straße 数字 ñ", "Straße 数字 ñ"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_would_move_a_terminal_is_printed_as_an_escape(case):
    given_, shown = HOSTILE[case]
    assert (
        str(BundleError(f"no golden example proves {given_}", where="x.ekb"))
        == f"x.ekb: no golden example proves {shown}"
    )


@given(st.text(), st.text(), st.text())
def test_every_message_is_one_printable_line_and_encodes(what, where, do):
    told = str(EdgekitError(what, where=where, do=do))
    assert told.isprintable()
    told.encode()


def test_a_name_of_a_megabyte_does_not_make_a_message_of_one():
    told = str(BundleError("x" * 2**20, where="y" * 2**20))
    assert len(told) <= 2 * MOST_TEXT + 4
    assert "..." in told


def test_the_parts_stay_what_they_were_for_a_program_that_reads_them():
    error = pickle.loads(pickle.dumps(BundleError("a\nb", where="caf\udce9.ekb", do="copy it")))
    assert (error.what, error.where, error.do) == ("a\nb", "caf\udce9.ekb", "copy it")
    assert error.as_json()["where"] == "caf\udce9.ekb"


@pytest.mark.parametrize(
    ("recorded", "command"),
    [
        (
            '{"url": "file:///home/me/my%20clone", "dir_info": {"editable": true}}',
            "pip install -e '/home/me/my clone[x]'",
        ),
        ('{"url": "file:///home/me/clone", "dir_info": {}}', "pip install '/home/me/clone[x]'"),
        (
            '{"url": "file:///wheels/edgekit_deploy-0.1.0-py3-none-any.whl", "archive_info": {}}',
            "pip install '/wheels/edgekit_deploy-0.1.0-py3-none-any.whl[x]'",
        ),
        (
            '{"url": "https://a.example/e.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}',
            "pip install 'edgekit-deploy[x] @ git+https://a.example/e.git@c0ffee'",
        ),
        (
            '{"url": "https://a.example/e.whl", "archive_info": {}}',
            "pip install 'edgekit-deploy[x] @ https://a.example/e.whl'",
        ),
        (None, None),
        ("no json", None),
    ],
    ids=["clone", "folder", "wheel", "git", "address", "index", "damaged"],
)
def test_what_adds_an_extra_comes_from_where_edgekit_was_installed(monkeypatch, recorded, command):
    class Installed:
        def read_text(self, name):
            return recorded if name == "direct_url.json" else None

    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)  # pip is there, though uv made this environment
    assert install_command("x") == (command or "pip install 'edgekit-deploy[x]'")


def test_an_environment_without_pip_gets_uvs_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert install_command("x").startswith(f"uv pip install --python {shlex.quote(sys.executable)} ")
