"""What failed and then passed is flaky: named, counted, and forgiven to the tests in tests/flaky.toml alone."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import report

ROOT = Path(__file__).resolve().parents[2]

BAD = '<testcase classname="tests.b" name="test_bad[a: 1]">{}</testcase>'
NAME = "tests/b.py::test_bad[a: 1]"
FAILURE = '<failure message="assert 1 == 2&#10;more">x</failure>'
UNKNOWN = f"flaky, and not in tests/flaky.toml: {NAME}; mend it, or add it there with the reason"


def results(place: Path, second: str | None = None) -> None:
    """Of one test that passed, and of one that failed; ``second``: what is in the case of its second run."""
    (place / "junit.xml").write_text(
        '<testsuites><testsuite tests="2" failures="1"><testcase classname="tests.a" name="test_good"/>'
        + BAD.format(FAILURE)
        + "</testsuite></testsuites>"
    )
    (place / "junit.code").write_text("1\n")
    if second is not None:
        (place / "again.xml").write_text(f"<testsuites><testsuite>{BAD.format(second)}</testsuite></testsuites>")


def test_failed_tests_are_named_with_their_first_line(tmp_path: Path) -> None:
    results(tmp_path)
    assert report.failures(tmp_path) == [(report.FAILED, NAME, "assert 1 == 2")]
    assert report.failures(tmp_path / "nothing") == []


def test_a_file_that_could_not_be_collected_is_named(tmp_path: Path) -> None:
    case = '<testcase classname="" name="tests.vm.test_x"><error message="collection failure"/></testcase>'
    (tmp_path / "junit.xml").write_text(f'<testsuite tests="1" errors="1">{case}</testsuite>')
    assert report.failures(tmp_path) == [(report.FAILED, "tests/vm/test_x.py", "collection failure")]


@pytest.mark.parametrize(
    ("second", "counted", "what", "why"),
    [
        ("", (2, 1, 0, 0), report.FLAKY, UNKNOWN),
        ('<failure message="again"/>', (1, 0, 1, 0), report.FAILED, "1 failed, and did not pass the second time"),
        ('<skipped message="not now"/>', (1, 0, 1, 0), report.FAILED, "1 failed, and did not pass the second time"),
        (None, (1, 0, 1, 0), report.FAILED, "1 failed, and did not pass the second time"),
    ],
)
def test_what_passes_the_second_time_is_flaky(
    tmp_path: Path, second: str | None, counted: tuple[int, int, int, int], what: str, why: str
) -> None:
    results(tmp_path, second)
    assert report.counts(tmp_path) == counted
    assert (report.failures(tmp_path), report.unproven(tmp_path)) == ([(what, NAME, "assert 1 == 2")], why)


@pytest.mark.parametrize("known", [[NAME], ["tests/b.py::test_bad"]])
def test_a_known_one_is_forgiven_with_any_parameters_or_these(tmp_path: Path, known: list[str]) -> None:
    results(tmp_path, "")
    assert report.unknown(tmp_path, known) == ""
    assert report.unknown(tmp_path, ["tests/b.py::test_ba", "tests/b.py::test_bad[a: 2]"]) == UNKNOWN


def test_one_that_waited_for_anothers_second_try_is_not_flaky(tmp_path: Path) -> None:
    said = "failed on setup with &quot;Failed: postponed: tests before these failed&quot;"
    results(tmp_path, "")
    file = tmp_path / "junit.xml"
    file.write_text(file.read_text().replace("assert 1 == 2&#10;more", said))
    assert [what for what, *_ in report.failures(tmp_path)] == [report.POSTPONED]
    assert (report.counts(tmp_path), report.unproven(tmp_path)) == ((2, 0, 0, 0), "")
    (tmp_path / "again.xml").unlink()
    assert [what for what, *_ in report.failures(tmp_path)] == [report.FAILED]
    assert (report.counts(tmp_path), report.unproven(tmp_path)[:8]) == ((1, 0, 1, 0), "1 failed")
    assert report.POSTPONING.removeprefix("Failed: ") in (ROOT / "tests/lab/test_lockdown.py").read_text()


def test_one_that_is_unknown_is_forgiven_and_no_two(tmp_path: Path) -> None:
    most = report.MOST_UNKNOWN
    results(tmp_path, "")
    assert (report.unproven(tmp_path), report.unproven(tmp_path, most)) == (UNKNOWN, "")
    other = BAD.replace("test_bad", "test_worse")
    for name, inside in (("junit.xml", FAILURE), ("again.xml", "")):
        text = (tmp_path / name).read_text().replace("</testsuite>", other.format(inside) + "</testsuite>")
        (tmp_path / name).write_text(text.replace('tests="2" failures="1"', 'tests="3" failures="2"'))
    assert report.counts(tmp_path) == (3, 2, 0, 0)
    assert report.unproven(tmp_path, most) == UNKNOWN.replace(NAME, f"{NAME}, {NAME.replace('bad', 'worse')}")


@pytest.mark.parametrize("code", ["1\n", "2\n", None])
def test_what_ci_does_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: str | None
) -> None:
    """Its first run has to have come to its end with failed tests and nothing else; one unknown test is forgiven."""
    monkeypatch.setattr(report, "MOST_UNKNOWN", 0)
    results(tmp_path, "")
    (tmp_path / "junit.code").unlink() if code is None else (tmp_path / "junit.code").write_text(code)
    monkeypatch.setattr(report, "KNOWN", tmp_path / "flaky.toml")
    report.KNOWN.write_text("")
    assert report.main(tmp_path) == 1
    assert (capsys.readouterr().err == f"{UNKNOWN}\n") == (code == "1\n")
    report.KNOWN.write_text(f'[[test]]\nname = "{NAME}"\nreason = "x"\nsince = 2026-11-24\n')
    assert report.main(tmp_path) == (0 if code == "1\n" else 1)
    assert capsys.readouterr().out == f"{report.FLAKY} {NAME}: assert 1 == 2\n1 flaky, 0 failed\n"
    report.KNOWN.write_text("")
    monkeypatch.setattr(report, "MOST_UNKNOWN", 1)
    assert report.main(tmp_path) == (0 if code == "1\n" else 1)


@pytest.mark.parametrize("known", [False, True])
def test_pytests_own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    """A test that fails the first time alone, run as .ci/run runs it."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_once.py").write_text(
        "from pathlib import Path\n"
        "def test_first():\n    p = Path('there')\n    there = p.exists()\n    p.touch()\n    assert there\n"
        "def test_good():\n    pass\n"
    )
    options = ["-q", "-p", "no:randomly", "--rootdir=.", "--import-mode=importlib", "tests"]
    again = ["--last-failed", "--last-failed-no-failures=none"]
    for name, more in (("junit", []), ("again", again)):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *more, f"--junitxml={name}.xml"], cwd=tmp_path, check=False
        )
        (tmp_path / f"{name}.code").write_text(f"{done.returncode}\n")
    monkeypatch.setattr(report, "known_flaky", lambda: ["tests/test_once.py::test_first"] if known else [])
    monkeypatch.setattr(report, "MOST_UNKNOWN", 0)
    assert report.counts(tmp_path) == (2, 1, 0, 0)
    assert report.main(tmp_path) == (0 if known else 1)


def listed(**changed: str) -> str:
    lines = {"name": '"tests/a.py::test_a"', "reason": '"a busy host"', "since": "2026-11-24"} | changed
    return "[[test]]\n" + "".join(f"{key} = {value}\n" for key, value in lines.items() if value)


def test_the_list_is_short_and_gives_reasons() -> None:
    assert report.known_flaky(3 * listed()) == ["tests/a.py::test_a"] * 3
    for text, expected in (
        (4 * listed(), "4 tests; at most 3 may be flaky: mend one"),
        (listed(reason=""), "tests/a.py::test_a has no reason"),
        (listed(since=""), "tests/a.py::test_a has no since"),
        (listed(name=""), "a test has no name"),
    ):
        with pytest.raises(ValueError, match=expected):
            report.known_flaky(text)


def test_every_test_in_the_list_exists() -> None:
    for name in report.known_flaky():
        file, _, test = name.partition("[")[0].partition("::")
        functions = [node.name for node in ast.parse((ROOT / file).read_text()).body if hasattr(node, "name")]
        assert test in functions, f"tests/flaky.toml names {name}, which is gone"
