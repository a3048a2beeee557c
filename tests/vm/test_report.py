"""What is made of a guest's junit.xml."""

from pathlib import Path

import report

JUNIT = '<testsuites><testsuite tests="2" {}>{}</testsuite></testsuites>'
FAILURE = '<failure message="assert 1 == 2&#10;more">x</failure>'
BAD = f'<testcase classname="tests.b" name="test_bad[a: 1]">{FAILURE}</testcase>'


def test_failed_tests_are_named_with_their_first_line(tmp_path: Path) -> None:
    good = '<testcase classname="tests.a" name="test_good"/>'
    (tmp_path / "junit.xml").write_text(JUNIT.format('failures="1"', good + BAD))
    assert report.failures(tmp_path) == [("tests/b.py::test_bad[a: 1]", "assert 1 == 2")]
    assert (report.counts(tmp_path), report.unproven(tmp_path)) == ((1, 1, 0), "1 failed")
    assert report.failures(tmp_path / "nothing") == []


def test_a_file_that_could_not_be_collected_is_named(tmp_path: Path) -> None:
    case = '<testcase classname="" name="tests.vm.test_x"><error message="collection failure"/></testcase>'
    (tmp_path / "junit.xml").write_text(JUNIT.format('errors="1"', case))
    assert report.failures(tmp_path) == [("tests/vm/test_x.py", "collection failure")]


def test_nothing_but_skips_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(JUNIT.format('skipped="2"', ""))
    assert report.unproven(tmp_path) == "no test passed"
