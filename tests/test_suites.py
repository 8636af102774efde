"""`make test-all`: one red suite hides no other, and what could not run is red in CI."""

from __future__ import annotations

from collections import Counter

import pytest
import suites
from suites import Outcome

REPORT = """<testsuites><testsuite>
<testcase classname="a" name="good" time="0.5"/>
<testcase classname="a" name="bad" time="2.0"><failure message="no"/></testcase>
<testcase classname="a" name="broken" time="0.1"><error message="no"/></testcase>
<testcase classname="a" name="left" time="0.0"><skipped message="why"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Suites that stand for real ones: each make target writes what it is told to and exits so."""
    (tmp_path / "report.xml").write_text(REPORT)
    (tmp_path / "one.xml").write_text(REPORT.replace("<error", "<skipped").replace("</error", "</skipped"))
    (tmp_path / "again.xml").write_text('<testsuite><testcase classname="a" name="bad" time="2"/></testsuite>')
    (tmp_path / "coverage.json").write_text('{"totals": {"percent_covered": 79.96}}')
    (tmp_path / "green.xml").write_text('<testsuites><testsuite><testcase name="x" time="1"/></testsuite></testsuites>')
    lines = [
        "green:\n\tcp green.xml build/reports/green.xml",
        "red:\n\tcp report.xml build/reports/red.xml; exit 1",
        "gone:\n\techo no such Python > build/reports/gone.left-out",
        "dead:\n\ttrue",
        "once:\n\techo $$PYTEST_ADDOPTS >> asked; if [ -e seen ]; then cp again.xml build/reports/once.xml; "
        "else touch seen; cp one.xml build/reports/once.xml; exit 1; fi",
        "always:\n\techo $$PYTEST_ADDOPTS >> asked; cp one.xml build/reports/always.xml; exit 1",
        "covered:\n\tcp green.xml build/reports/covered.xml; cp coverage.json build/reports/covered.coverage.json; "
        "exit 1",
        *(
            f"{name}:\n\techo of {name} in $(JOBS) process; touch {name}; while [ ! -e {other} ]; do sleep 0.01; done; "
            f"cp green.xml build/reports/{name}.xml"
            for name, other in (("left", "right"), ("right", "left"))
        ),
    ]
    (tmp_path / "Makefile").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    monkeypatch.setattr(suites, "REPORTS", tmp_path / "build" / "reports")
    monkeypatch.setattr(suites, "SUITES", {name: name for name in ("red", "dead", "gone", "green")})
    monkeypatch.delenv("CI", raising=False)
    return tmp_path


def test_every_suite_runs_though_one_fails_and_the_last_line_is_the_sum(made, capfd):
    assert suites.main([]) == 1
    out = capfd.readouterr().out
    assert "green           1 passed, 0 failed, 0 skipped" in out
    assert "red             1 passed, 2 failed, 1 skipped" in out
    assert "gone            left out: no such Python" in out
    assert out.strip().splitlines()[-1] == "2 passed, 2 failed, 1 skipped"
    assert (made / "build/reports/slowest.txt").read_text().splitlines()[0].endswith("red  a::bad")


def test_a_suite_that_ran_no_test_has_failed(made, capfd):
    assert suites.main(["dead"]) == 1
    assert "exit code 1 without a failed test" in capfd.readouterr().out


@pytest.mark.parametrize(("ci", "code"), [("true", 1), ("", 0)])
def test_what_cannot_run_here_is_a_failure_in_ci_alone(made, monkeypatch, ci, code):
    monkeypatch.setenv("CI", ci)
    assert suites.main(["gone", "green"]) == code


def test_suites_run_beside_each_other_in_one_process_each_and_their_output_is_not_mixed(made, monkeypatch, capfd):
    monkeypatch.setattr(suites, "SUITES", {name: name for name in ("left", "green", "right")})
    monkeypatch.setattr(suites, "BESIDE", ("left", "right"))
    assert suites.main([]) == 0  # each waits for the other
    out = capfd.readouterr().out
    for name in ("left", "right"):
        assert out.count(f"of {name} in 1 process") == 2  # the command, and what it says
    assert [line.split()[0] for line in out.splitlines()[-4:-1]] == ["green", "left", "right"]


def test_coverage_is_in_the_summary_and_its_floor_fails_the_suite(made, monkeypatch, capfd):
    monkeypatch.setattr(suites, "SUITES", {"covered": "covered"})
    assert suites.main([]) == 1
    assert "1 passed, 0 failed, 0 skipped in 0 s, 80.0 % covered  (exit code " in capfd.readouterr().out


@pytest.mark.parametrize(("limit", "ci", "code"), [(0.0, "true", 1), (0.0, "", 0), (600.0, "true", 0)])
def test_a_suite_that_takes_too_much_of_the_processors_fails_in_ci(made, monkeypatch, capfd, limit, ci, code):
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(suites, "MOST_PROCESSOR_S", {"green": limit})
    assert suites.main(["green"]) == code
    assert f" of {limit:.0f} s of the processors" in capfd.readouterr().out


def test_a_test_that_passes_alone_is_named_and_is_no_failure(made, monkeypatch, capfd):
    monkeypatch.setattr(suites, "SUITES", {"once": "once"})
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    assert suites.main([]) == 0
    *_, suite, unsteady, total = capfd.readouterr().out.strip().splitlines()
    assert "2 passed, 0 failed, 2 skipped" in suite
    assert unsteady.split() == ["unsteady,", "passed", "alone:", "a::bad"]
    assert total == "2 passed, 0 failed, 2 skipped"
    first, second = (made / "asked").read_text().splitlines()
    assert second == f"{first} --last-failed"
    assert "cache_dir=" in first


def test_a_test_that_fails_alone_has_failed_and_many_are_not_tried_again(made, monkeypatch, capfd):
    monkeypatch.setattr(suites, "SUITES", {"always": "always"})
    assert suites.main([]) == 1
    assert "1 passed, 1 failed, 2 skipped" in capfd.readouterr().out
    assert len((made / "asked").read_text().splitlines()) == 2
    monkeypatch.setattr(suites, "SUITES", {"always": "always", "red": "red"})
    monkeypatch.setattr(suites, "SECOND_LOOK", 2)
    assert suites.main(["always", "red"]) == 1
    assert len((made / "asked").read_text().splitlines()) == 3


def test_a_name_that_no_suite_has_is_refused(made, capfd):
    assert suites.main(["blue"]) == 2
    assert "no such suite: blue; there are red, dead, gone, green" in capfd.readouterr().err


def test_the_slowest_tests_come_first():
    outcomes = [Outcome("a", 0, 1, Counter(), ((0.1, "x"), (3.0, "y"))), Outcome("b", 0, 1, Counter(), ((2.0, "z"),))]
    assert [line.split()[-1] for line in suites.slowest(outcomes).splitlines()] == ["y", "z", "x"]
