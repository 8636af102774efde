"""Words of a bundle, printed: two labels that look the same are told apart, and no line of a model's is an order to a
terminal.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tiny
from click.testing import CliRunner
from PIL import Image

from edgekit.cli.main import cli
from edgekit.packaging.assemble import assemble
from edgekit.packaging.bundle_options import BundleTerms
from edgekit.packaging.writer import write_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Its labels and its licence hold what a reader accepts and nobody sees."""
    content = tiny.content("tflite-int8", terms=BundleTerms(licence="MIT\u200b"))
    labels = ("red\u200b", "red", "می\u200cخواهم", "red\U000e0041")
    draft, manifest = assemble(replace(content, contract=replace(content.contract, labels=labels)))
    write_bundle(tmp_path / "net.ekb", draft, manifest)
    return tmp_path / "net.ekb"


def printed(*arguments: str | Path) -> str:
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_labels_that_look_the_same_are_told_apart_and_real_ones_are_whole(bundle: Path, tmp_path: Path):
    Image.new("RGB", (8, 8), (255, 0, 0)).save(tmp_path / "a.png")
    shown = printed("run", bundle, tmp_path / "a.png")
    assert sorted(line.split("%  ")[1] for line in shown.splitlines()[1:]) == sorted(
        ["red\\u200b", "red", "می\u200cخواهم", "red\\U000e0041"]
    )


def test_what_a_bundle_says_of_itself_is_shown_so_too(bundle: Path):
    assert "  licence    MIT\\u200b\n" in printed("inspect", bundle)


def test_a_layers_name_is_no_order_to_a_terminal(tmp_path: Path):
    net = tmp_path / "net.tflite"
    net.write_bytes(tiny.model_bytes("tflite-f32").replace(b"Identity", b"\x1b[2JIden"))
    shown = printed("estimate", net, "--profile", "raspberry-pi-4", "--layers")
    assert "\\x1b[2J" in shown
    assert "\x1b" not in shown
