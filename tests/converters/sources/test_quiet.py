"""Tools are kept quiet; errors and our own words are not."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from edgekit_converters.recipe.foreign_code import quiet


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import os, sys\nfrom edgekit_converters.recipe.foreign_code import quiet\n" + code],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        check=False,
    )


def test_c_code_is_silenced_while_pythons_stderr_reaches_the_terminal() -> None:
    done = run(
        "with quiet():\n os.write(2, b'noise')\n print('12 %', file=sys.stderr)\nprint('after', file=sys.stderr)"
    )
    assert done.stderr.split() == ["12", "%", "after"]


def test_what_was_written_can_be_read_for_an_errors_message() -> None:
    assert (
        run("with quiet() as log:\n os.write(2, b'op Foo is unknown')\n print(log.text())").stdout
        == "op Foo is unknown\n"
    )


def test_an_exception_passes_through_and_stderr_is_back() -> None:
    done = run(
        "try:\n with quiet():\n  raise KeyError('real')\nexcept KeyError as e:\n print(e, "
        "file=sys.stderr)\nos.write(2, b'on')"
    )
    assert done.stderr == "'real'\non"


def test_everything_is_let_through_on_request() -> None:
    assert "noise" in run("with quiet():\n os.write(2, b'noise')", EDGEKIT_CONVERTER_LOG="1").stderr


def test_the_root_logger_is_left_as_it_was() -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    with pytest.raises(ValueError, match="real"), quiet():
        logging.warning("a tool's advice")  # noqa: LOG015 - what the quantizer does
        raise ValueError("real")
    assert (root.handlers, root.level) == before


def test_who_took_stderr_while_a_tool_was_quiet_may_write_to_it_afterwards() -> None:
    """As a thread does that prints a traceback while another one's tool ends."""
    done = run(
        "for n in range(3):\n with quiet():\n  taken = sys.stderr\n print(n, file=taken)\n"
        "with quiet():\n print('again', file=taken)\n print('own', file=sys.stderr)\n os.write(2, b'noise')"
    )
    assert done.stderr.split() == ["0", "1", "2", "again", "own"]


def test_two_threads_that_leave_in_any_order_give_stderr_back() -> None:
    done = run(
        "first, second = quiet(), quiet()\n"
        "one = first.__enter__()\nos.write(2, b'noise one')\n"
        "two = second.__enter__()\nos.write(2, b'noise two')\n"
        "first.__exit__(None, None, None)\nos.write(2, b', still quiet')\nprint(two.text())\n"
        "second.__exit__(None, None, None)\nos.write(2, b'heard')"
    )
    assert done.stderr == "heard"
    assert done.stdout == "noise two, still quiet\n"
