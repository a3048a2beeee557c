"""`outrace incidents` as it is called: tables, text, JSON, exit codes, on stores as the daemon leaves them."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click import unstyle

from monitor.cli import incident_steps, incident_text
from monitor.cli.explain_figures import kubelets_choice
from monitor.cli.incident_text import figures_text, show_lines
from monitor.policy.releases import era
from monitor.race.events import WorkingSets
from monitor.race.figure_age import FigureAge, OfAge, PodPoints
from monitor.side.export.log import Log
from monitor.side.incidents.store import IncidentStore
from tests import live
from tests.cli.called import called
from tests.commands import run
from tests.race.builders import MI, ms, pod
from tests.side.incident_samples import DURING_GRACE, EVICTION_WON, NOW, OWN_LIMIT, SAMPLES
from tests.terminals import seat


@pytest.fixture(autouse=True)
def _one_hour_east_of_greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC-01:00")  # POSIX signs
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def incidents(*arguments: str) -> subprocess.CompletedProcess[str]:
    return called("incidents", *arguments)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("state")
    store = IncidentStore(directory / "incidents.db", log=Log(), clock=lambda: NOW)
    for sample in SAMPLES:
        store.add(sample)
    return str(directory)


def test_list_as_a_table_and_as_json_without_steps(state: str) -> None:
    done = incidents("list", "--state-dir", state)
    assert (done.returncode, done.stderr) == (0, "")
    header, *rows = done.stdout.splitlines()
    assert header.split() == ["TIME", "ID", "VERDICT", "WHO", "MARGIN", "SUMMARY"]
    assert len(rows) == 3
    assert "own_limit" in rows[0]
    assert "2026-01-31T05:00:00+01:00" in rows[1]  # local time
    for text in ("oom_during_grace", "evicted batch/report; OOM prod/db-0", "-48.0Mi, -15.8 s", "have taken 7th."):
        assert text in rows[1]
    assert "21.0Mi, 8.730 ms" in rows[2]
    without = ("steps", "memory")
    listed = [{k: v for k, v in s.items() if k not in without} for s in (OWN_LIMIT, DURING_GRACE, EVICTION_WON)]
    assert json.loads(incidents("list", "--state-dir", state, "-o", "json").stdout) == {"incidents": listed}
    for wanted, found in (("latest", OWN_LIMIT), ("2026-01-31T04", DURING_GRACE)):
        assert json.loads(incidents("show", wanted, "--state-dir", state, "-o", "json").stdout) == found


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (("--since", "2026-01-31T04:00:00Z"), [OWN_LIMIT, DURING_GRACE]),
        (("--since", "2026-01-31T05:00:00"), [OWN_LIMIT, DURING_GRACE]),  # local
        (("--since", "2026-01-31T05:00:00+01:00", "--until", "2026-01-31T05:00:00Z"), [DURING_GRACE]),
        (("--since", "1h"), []),
        (("--since", "9999d1h"), [OWN_LIMIT, DURING_GRACE, EVICTION_WON]),
        (("--until", "1d"), [OWN_LIMIT, DURING_GRACE, EVICTION_WON]),
        (("--verdict", "own_limit"), [OWN_LIMIT]),
        (("--flag", "wrong_victim"), [DURING_GRACE]),
        (("--pod", "shop/cart"), [EVICTION_WON]),
        (("--limit", "1"), [OWN_LIMIT]),
    ],
)
def test_filters(state: str, filters: tuple[str, ...], expected: list[dict[str, Any]]) -> None:
    done = incidents("list", "--state-dir", state, "-o", "json", *filters)
    assert done.returncode == 0, done.stderr
    assert [found["id"] for found in json.loads(done.stdout)["incidents"]] == [one["id"] for one in expected]


def test_show_prints_verdict_who_when_timeline_what_if_and_advice(state: str) -> None:
    done = incidents("show", EVICTION_WON["id"], "--state-dir", state)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0] == EVICTION_WON["summary"]
    assert lines[2] == "who    shop/cart evicted (rank 1, grace 0 s)"
    assert lines[3] == "when   2026-01-31T04:12:09.412+01:00, for 19.0 ms, in node"
    assert lines[4] == f"what   eviction_won, margin 21.0Mi, 8.730 ms; incident {EVICTION_WON['id']}"
    body = lines[lines.index("timeline") + 2 :]
    times = [line[: line.index(" ms") + 3].strip() for line in body[:8] if " ms" in line[:14]]
    assert times == ["-412.0 ms", "0.000 ms", "0.074 ms", "0.112 ms", "0.131 ms", "9.900 ms", "19.0 ms"]
    assert "decides to evict shop/cart (rank 1, grace 0 s, working set 280.0Mi)" in done.stdout
    assert "it gave back 279.0Mi" in done.stdout
    assert "polling every 10 s would have decided in time in 6% of cases" in done.stdout
    assert "shop/cart 71%, shop/search 29%" in done.stdout
    assert lines[-2:] == ["advice", f"  {EVICTION_WON['advice']}"]
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("list", "--since", "soon"), "'soon' is neither a duration"),
        (("list", "--verdict", "won"), "'won' is not one of"),
        (("list", "--limit", "0"), "--limit"),
        (("show",), "Missing argument"),
        (("lost",), "No such command"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], expected: str) -> None:
    done = incidents(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr


def test_show_folds_pauses_and_long_rows(state: str) -> None:
    text = incidents("show", DURING_GRACE["id"], "--state-dir", state).stdout
    assert "... 14.2 s later" in text
    assert "... 8 more: exited" in text
    assert text.count("is dead") == 4
    assert "OOM KILLER picks postgres (pid 4312) of prod/db-0" in text
    assert "kmsg confirms it" in text
    assert "rank 7 of the policy" in text


def on_terminal(*arguments: str, columns: int, **environment: str) -> str:
    """What a terminal of that width is sent."""
    with seat(sys.executable, "-c", live.CLI, "incidents", *arguments, columns=columns, **environment) as made:
        made.screen.feed = lambda _: None
        assert made.end() == 0
        return made.raw.decode().replace("\r\n", "\n")


def test_colours_and_width_are_those_of_the_terminal(state: str) -> None:
    text = on_terminal("show", EVICTION_WON["id"], "--state-dir", state, columns=80)
    assert text.startswith("\x1b[32m\x1b[1mEviction won")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert max(map(len, plain.splitlines())) <= 80
    # Nothing is shown by colour alone.
    assert plain == on_terminal("show", EVICTION_WON["id"], "--state-dir", state, columns=80, NO_COLOR="1")
    table = on_terminal("list", "--state-dir", state, columns=100).splitlines()
    assert [len(line) for line in table[2:]] == [100, 100]
    assert table[2].endswith("...")


def test_names_of_processes_cannot_write_on_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\n\x9b2J"
    victim = OWN_LIMIT["oom_victims"][0] | {"comm": evil}
    bad = OWN_LIMIT | {
        "oom_victims": [victim],
        "summary": f"killed {evil}",
        "steps": [{"t_ms": 0, "what": evil, evil: evil}],
    }
    IncidentStore(tmp_path / "incidents.db", log=Log(), clock=lambda: NOW).add(bad)
    for arguments in (("list",), ("show", "latest")):
        done = incidents(*arguments, "--state-dir", str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert "\\x1b]0;owned\\x07\\n\\x9b2J" in done.stdout
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", done.stdout)


def test_export_writes_all_of_them(state: str, tmp_path: Path) -> None:
    file = tmp_path / "all.jsonl"
    done = incidents("export", str(file), "--state-dir", state)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "3 incidents\n")
    assert [json.loads(line) for line in file.read_text().splitlines()] == list(SAMPLES)
    assert incidents("export", "-", "--state-dir", state).stdout == file.read_text()
    live.one_line(
        incidents("export", str(tmp_path / "no" / "file"), "--state-dir", state), 1, "No such file or directory"
    )
    assert incidents("export", "/dev/full", "--state-dir", state).returncode == 1


def test_nothing_stored_yet(tmp_path: Path) -> None:
    for directory, more in ((tmp_path, ""), (tmp_path / "none", " (there is no such directory)")):
        note = f"no incidents stored in {directory} yet{more}\n"
        done = incidents("list", "--state-dir", str(directory))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", note)
        done = incidents("list", "--state-dir", str(directory), "-o", "json")
        assert (done.returncode, json.loads(done.stdout), done.stderr) == (0, {"incidents": []}, "")
        live.one_line(incidents("show", "latest", "--state-dir", str(directory)), 1, "no incidents stored in")
        file = tmp_path / "all.jsonl"
        done = incidents("export", str(file), "--state-dir", str(directory))
        assert (done.returncode, done.stderr, file.read_text()) == (0, note, "")
        file.unlink()


def test_unknown_ids_end_with_1_and_close_matches(state: str) -> None:
    done = incidents("show", "2026-01-31T03:12:09.412Z-node-4f1d", "--state-dir", state)
    live.one_line(done, 1, "no incident has the id", f"close: {EVICTION_WON['id']}")
    live.one_line(incidents("show", "2026", "--state-dir", state), 1, "3 incidents begin with '2026'; say more of it")


def test_damaged_stores_end_with_1_and_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "incidents.db"
    file.write_bytes(b"garbage" * 1000)
    for arguments in (("list",), ("show", "latest"), ("export", str(tmp_path / "out"))):
        done = incidents(*arguments, "--state-dir", str(tmp_path))
        live.one_line(done, 1, f"{file} is damaged", "the monitor renames the file", "move it away")
    assert not (tmp_path / "out").exists()
    # The monitor begins a new file. What can be read is printed, and that it is not all is reported.
    IncidentStore(file, log=Log(), clock=lambda: NOW).add(EVICTION_WON)
    done = incidents("list", "--state-dir", str(tmp_path))
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2)
    renamed = f"a damaged file was renamed to {file}.damaged-20260131T060000Z; its incidents are not shown\n"
    assert done.stderr == renamed


def test_a_damaged_incident_costs_itself(state: str, tmp_path: Path) -> None:
    content = Path(state, "incidents.db").read_bytes()
    at = content.index(b"\x78\x9c") + 20  # in the compressed JSON of one of them
    (tmp_path / "incidents.db").write_bytes(content[:at] + bytes(8) + content[at + 8 :])
    done = incidents("list", "--state-dir", str(tmp_path), "-o", "json")
    assert len(json.loads(done.stdout)["incidents"]) == 2
    assert done.returncode == 1
    assert "1 incidents in" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_a_reader_without_rights_gets_a_remedy(state: str) -> None:
    code = f"import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n{live.CLI}"
    with tempfile.TemporaryDirectory(prefix="outrace-test-") as name:  # not below pytest's, which nobody else may enter
        os.chmod(name, 0o755)
        closed = Path(name) / "state"
        closed.mkdir(mode=0o750)
        (closed / "incidents.db").write_bytes(Path(state, "incidents.db").read_bytes())

        def as_nobody() -> subprocess.CompletedProcess[str]:
            arguments = [sys.executable, "-c", code, "incidents", "list", "--state-dir", str(closed)]
            return run(*arguments, cwd="/", env=live.environment())

        done = as_nobody()
        if "ModuleNotFoundError" in done.stderr:
            pytest.skip(f"the sources cannot be read by others: {done.stderr.splitlines()[-1]}")
        live.one_line(done, 1, "Permission denied; use sudo")
        # A member of the group may read.
        os.chown(closed, 0, 65534)
        os.chown(closed / "incidents.db", 0, 65534)
        (closed / "incidents.db").chmod(0o640)
        done = as_nobody()
        assert (done.returncode, done.stderr) == (0, "")
        assert len(done.stdout.splitlines()) == 4


@pytest.mark.parametrize("ms", [0.0, 0.0012, 9.9994, -12.3, 999.94, 9999.4, 10_000, -86_400_000.0])
def test_times_are_short_and_keep_their_sign(ms: float) -> None:
    text = incident_text.format_ms(ms)
    value, unit = text.split()
    assert abs(float(value) * {"ms": 1, "s": 1000}[unit] - ms) <= max(0.0006, abs(ms) / 1000)
    assert len(text) <= 12


def test_every_kind_of_step_has_a_sentence_and_an_unknown_one_its_fields() -> None:
    assert incident_steps.describe({"t_ms": 1, "what": "new_thing", "usage": 2 << 20, "who": "x", "no": None}) == (
        "new thing: usage 2.0Mi, who x"
    )
    # One of another version of outrace, whose fields are not those of this one.
    assert incident_steps.describe({"t_ms": 1, "what": "decided", "pod": "a/b"}) == "decided: pod a/b"
    source = Path(incident_steps.__file__).parents[1] / "race" / "timeline.py"
    kinds = set(re.findall(r'"what": "(\w+)"', source.read_text())) | {"oom"}
    assert len(kinds) > 12
    assert kinds - set(incident_steps._TEXTS) == set()


BATCH_THEN_DB = FigureAge(
    4500, "shop/batch", 15, (OfAge("shop/batch", 0, 6, 0.4), OfAge("shop/db", 6, 15, 0.6)), ("shop/batch", "shop/db")
)


SAME = (OfAge("shop/batch", 0, 15, 1.0),)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            {},
            "It would have taken shop/batch on figures of pods up to 6 s old (40% of the ages up to 15 s), shop/db on "
            "those 6 to 15 s old (60% of the ages up to 15 s, the wrong pod).",
        ),
        (
            {"by_age": SAME, "could": ("shop/batch",)},
            "Figures of pods up to 15 s old change nothing: shop/batch is taken.",
        ),
        (
            {"by_age": SAME},
            "Figures of pods up to 15 s old change nothing: shop/batch is taken. Each pod's figure has an age of its "
            "own: shop/db could be taken too.",
        ),
        (
            {"known_s": 0.0, "by_age": (), "could": ("shop/batch",)},
            "It would have taken shop/batch on fresh figures of pods; what they had before is not known.",
        ),
    ],
    ids=["the wrong pod", "the same", "another one, too", "not known"],
)
def test_old_figures_of_pods_in_words(more: dict[str, Any], expected: str) -> None:
    assert figures_text(dataclasses.replace(BATCH_THEN_DB, **more).to_json()) == expected


def shown(incident: dict[str, Any]) -> str:
    return unstyle(" ".join(" ".join(show_lines(incident, 1000)).split()))


def test_explain_ranks_the_pods_of_this_moment_by_what_they_had() -> None:
    pods = (pod("hog", 500 * MI), pod("cart", 200 * MI), pod("still", 90 * MI))
    hog = PodPoints("uid-hog", False, ((ms(-20_000), 10 * MI), (ms(-4000), 300 * MI)))
    gone = PodPoints("uid-gone", False, ((ms(-20_000), 900 * MI), (ms(-1000), 800 * MI)))
    sets = WorkingSets(ms(500), ms(-20_000), (hog, gone)).to_json()
    found = kubelets_choice(sets, pods, era("kubelet-1.36"))
    assert found is not None
    assert (found.fresh, [(span.pod, span.to_s) for span in found.by_age]) == (
        "shop/hog",
        [("shop/hog", 4.5), ("shop/cart", 15.0)],
    )
    assert figures_text(found.to_json(), "A kubelet would take").startswith("A kubelet would take shop/hog on figures")


@pytest.mark.parametrize("data", [None, {}, {"event": "workingsets", "ts_ns": 1, "of": "another version"}])
def test_explain_shows_nothing_where_the_daemon_does_not(data: dict[str, Any] | None) -> None:
    assert kubelets_choice(data, (pod("hog", MI),), era("kubelet-1.36")) is None


def test_show_has_it_below_the_kubelets_chances() -> None:
    assert "shop/search on those 6 to 15 s old (60% of the ages up to 15 s, the wrong pod)" in shown(EVICTION_WON)


def test_an_eviction_by_the_kubelet_is_explained() -> None:
    took = {"pod": "shop/db", "grace_s": 0, "rank": 3, "figures": BATCH_THEN_DB.to_json()}
    found = shown({**OWN_LIMIT, "by": "kubelet", "evicted": [took]})
    assert "The kubelet took shop/db. On figures 6 to 15 s old it was first, on fresh ones shop/batch." in found


def test_oom_killed_and_evicted_as_the_api_has_it() -> None:
    (victim,) = {who["pod"] for who in OWN_LIMIT["oom_victims"]}
    found = shown({**OWN_LIMIT, "reported_evicted": [victim]})
    assert f"{victim} is Evicted by the kubelet as the API has it, and was OOM-killed" in found


def test_advise_shows_the_threshold_that_would_have_won(tmp_path: Path) -> None:
    """The third race took 3 MiB in 5 ms and 3 GiB in 12.5 s; in 12.03 s, on the line between both, 2.887 GiB."""
    store = IncidentStore(tmp_path / "incidents.db", log=Log(), clock=lambda: NOW)
    burst = {"signal": "memory.available", "capacity": 2**34, "threshold": 100 * 2**20, "beyond": 0, "rate": 1e8}
    outside = {"outside": 1100 * 2**20, "reserved": 1024 * 2**20}
    for n in range(3):
        most = [[5, (n + 1) * 2**20], [12_500, (n + 1) * 2**30]]
        more = outside if n == 1 else {}
        store.add({**EVICTION_WON, "id": f"race-{n}", "burst": {**burst, "most": most, **more}})
    store.add(OWN_LIMIT)  # not a race: counts for nothing
    done = incidents("advise", "--state-dir", str(tmp_path), "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert answer["incidents"] == 4
    advice = {each["reaction"]: each for each in answer["advice"]}
    assert list(advice) == ["kubelet", "kubelet-notified", "observe", "hold", "enforce"]
    assert advice["enforce"]["threshold"] == 3 * 2**20 + 1
    assert (advice["enforce"]["episodes"], advice["enforce"]["present"]) == (3, 1.0)
    assert set(advice["enforce"]["evidence"]) == {"race-0", "race-1", "race-2"}
    why = {"ms": 5, "taken": 3 * 2**20, "through": 0, "second_line": 0, "beyond": 0, "need": 3 * 2**20}
    assert advice["enforce"]["arithmetic"] == {"incident": "race-2", **why}
    # 3 MiB until the brake is on, 2 MiB that pass it, 3 MiB for a kill at the second line.
    assert advice["hold"]["threshold"] == 8 * 2**20 + 1
    assert advice["kubelet"]["threshold"] > 2**30
    assert advice["kubelet"]["present"] == 0.0
    assert advice["kubelet"]["costs"] == advice["kubelet"]["threshold"] - 100 * 2**20
    assert advice["kubelet"]["survives"]["always"] == 100 * 2**20 * 1000 // 12_030  # not a whole number: rounded down
    # 1100 MiB were used outside the pods, 1024 are reserved: 76 more.
    short = {"outside": 1100 * 2**20, "reserved": 1024 * 2**20, "short": 76 * 2**20}
    assert answer["reservation"] == {**short, "incident": "race-1", "evidence": ["race-1"]}
    text = incidents("advise", "--quantile", "0.5", "--state-dir", str(tmp_path)).stdout
    assert "memory.available<3Mi" in text
    assert "100% by 100Mi" in text
    assert "8.3 MiB/s (49.3 MiB/s at best)" in text
    assert "3 incidents: race-2, race-1, race-0" in text
    assert "reserve 76Mi more" in text


def test_advise_without_a_race(tmp_path: Path) -> None:
    done = incidents("advise", "--state-dir", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "")
    assert "no race for memory among the 0 incidents" in done.stderr
    assert "nothing to work it out from" in done.stderr
    answer = json.loads(incidents("advise", "--state-dir", str(tmp_path), "-o", "json").stdout)
    assert answer == {"incidents": 0, "advice": [], "reservation": None}


def test_what_is_stored_and_cannot_be_is_counted_as_damaged(tmp_path: Path) -> None:
    """A row that somebody wrote by hand: no growth at all, or two sizes at one moment."""
    burst = {"signal": "memory.available", "capacity": 2**34, "threshold": 2**20, "beyond": 0, "rate": None}
    store = IncidentStore(tmp_path / "incidents.db", log=Log(), clock=lambda: NOW)
    for name, most in (("whole", [[5, 9]]), ("empty", []), ("twice", [[5, 1], [5, 2]]), ("never", [[0, 1]])):
        store.add({**EVICTION_WON, "id": name, "burst": {**burst, "most": most}})
    done = incidents("advise", "--state-dir", str(tmp_path), "-o", "json")
    assert {each["episodes"] for each in json.loads(done.stdout)["advice"]} == {1}
    assert done.returncode == 1
    assert done.stderr == f"outrace: error: 3 incidents in {tmp_path / 'incidents.db'} are damaged and not shown\n"


def test_advise_works_from_a_recording_as_well() -> None:
    """A pod that grew by 100 MiB/s and was evicted at 32Mi; 100 MiB/s x 12.03 s are more than the node's 128 MiB."""
    recording = Path(__file__).resolve().parents[1] / "data/replay/linux-6.18-cgroup-v1.rec"
    done = incidents("advise", "--recording", str(recording), "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    advice = {each["reaction"]: each for each in answer["advice"]}
    assert answer["incidents"] == 2
    assert [len(each["evidence"]) for each in advice.values()] == [1] * 5
    assert (advice["kubelet"]["threshold"], advice["kubelet"]["present"]) == (None, 0.0)
    assert advice["enforce"]["present"] == 1.0
    assert advice["enforce"]["arithmetic"]["incident"] in advice["enforce"]["evidence"]


def test_advise_refuses_what_is_no_recording(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("nothing of ours")
    for arguments, words in (
        (("--recording", str(tmp_path / "none")), "No such file"),
        (("--recording", str(tmp_path / "file")), "no recording"),
        (("--quantile", "nan"), "'nan' is not a valid float;"),
        (("--recording", str(tmp_path / "file"), "--since", "1h"), "leave out --since or --recording"),
    ):
        done = incidents("advise", *arguments)
        assert done.returncode in (1, 2)
        assert words in done.stderr
