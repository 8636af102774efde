"""Plain progress lines: enough to know it lives, few enough to read."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from edgekit.cli.demo import _figures
from edgekit.cli.progress import PlainLines, console_progress


def test_a_stage_shows_its_start_a_line_now_and_then_and_its_end():
    stream, now = io.StringIO(), [0.0]
    say = PlainLines(stream, every_s=5.0, clock=lambda: now[0])
    for done in range(1, 101):
        now[0] = done * 0.2
        say("calibrating", done, 100)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "calibrating 1/100"
    assert lines[-1] == "calibrating 100/100 (5.1/s, 19.8 s)"
    assert 4 <= len(lines) <= 6
    assert "s left)" in lines[1]


def test_nothing_is_promised_from_the_first_item_alone():
    """Before it a model may have been opened for half a minute."""
    stream, now = io.StringIO(), [0.0]
    say = PlainLines(stream, clock=lambda: now[0])
    say("calibrating", 0, 500)
    now[0] = 28.0
    say("calibrating", 1, 500)
    assert stream.getvalue().splitlines()[-1] == "calibrating 1/500"


def test_work_of_unknown_length_shows_its_rate():
    stream, now = io.StringIO(), [0.0]
    say = PlainLines(stream, every_s=1.0, clock=lambda: now[0])
    say("reading", 0, None)
    now[0] = 2.0
    say("reading", 10, None)
    assert stream.getvalue().splitlines() == ["reading", "reading, 10 so far (5.0/s)"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_a_bar_with_a_rate():
    terminal = Terminal()
    with console_progress(terminal) as progress:
        progress("converting", 1, 2)
        progress("converting", 2, 2)
    assert "converting" in terminal.getvalue()
    assert "2/2" in terminal.getvalue()


def test_a_bar_of_unknown_length_shows_no_question_mark():
    terminal = Terminal()
    with console_progress(terminal) as progress:
        progress("converting", 0, None)
        progress("reading", 8, None)
    assert "/?" not in terminal.getvalue()
    assert " 8 " in terminal.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_line_of_its_own_is_printed_whole_and_visible(stream):
    out = stream()
    with console_progress(out) as progress:
        progress("converting", 1, 2)
        progress.say(f"warning: [red] {'a long line ' * 20}\x1b[31m end")
    assert f"warning: [red] {'a long line ' * 20}\\x1b[31m end" in out.getvalue()


class Gone(io.StringIO):
    """A terminal, or a pipe, that is there at first."""

    terminal, writes = False, 0

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.writes += 1
        if self.writes > 2:
            raise BrokenPipeError(32, "Broken pipe")
        return super().write(text)


@pytest.mark.parametrize("kind", ["gone", "terminal gone", "closed"])
def test_who_reads_no_more_ends_no_work(kind):
    out = Gone()
    out.terminal = kind == "terminal gone"
    if kind == "closed":
        out.close()
    done = []
    with console_progress(out) as progress:
        for number in range(5):
            progress(f"stage {number}", 1, 1)
            progress.say("a line")
            done.append(number)
    assert done == [0, 1, 2, 3, 4]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk to write to")
@pytest.mark.parametrize("kind", ["full disk", "closed pipe"])
def test_nor_does_a_stderr_that_takes_nothing(kind, monkeypatch):
    """Also not when what is still buffered is written at the end."""
    if kind == "full disk":
        writing = os.open("/dev/full", os.O_WRONLY)
    else:
        reading, writing = os.pipe()
        os.close(reading)
    stderr = os.fdopen(writing, "w")
    monkeypatch.setattr(sys, "stderr", stderr)
    with console_progress() as progress:
        progress("stage", 1, 1)
        progress.say("a line")
    stderr.close()


def test_a_step_of_the_demo_speaks_again_and_again_off_a_terminal(capsys):
    code, found = _figures(["doctor"], every_s=0.01)
    assert code in (0, 1)
    assert found["python"]
    said = capsys.readouterr().err.splitlines()
    assert len(said) > 1
    assert set(said) <= {f"    {number * 0.01:.0f} s: starting" for number in range(1, 10_000)}
