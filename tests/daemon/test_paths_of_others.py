"""Where root writes, or asks a daemon: no other user may replace a directory on the way, plant a link, or answer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.cli.daemons import running
from monitor.cli.run import lock, warn_of_code
from monitor.errors import ConfigError, MonitorError
from monitor.link.daemon_socket import SOCKET
from monitor.side.export.log import Log
from monitor.side.incidents import IncidentReader, IncidentStore
from monitor.side.recording import Writer
from tests import live, others
from tests.daemon.config_files import KUBELET, build, write
from tests.side.incident_samples import SAMPLES

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="not root: other users answer for their files themselves")


shared = live.fixture(others.shared)


@pytest.fixture
def theirs(shared: Path) -> Path:
    """A directory of the other user's in which root has one; the user may put another in its place."""
    others.does(f"os.mkdir('{shared}/theirs')")
    (shared / "theirs" / "roots").mkdir(mode=0o700)
    return shared / "theirs"


def test_a_state_dir_that_another_user_can_replace(theirs: Path) -> None:
    for state in (theirs / "roots", theirs / "new"):
        with pytest.raises(MonitorError, match=f"state directory {theirs} belongs to user {others.UID}; chown root"):
            lock(state)
    assert list((theirs / "roots").iterdir()) == []
    assert not (theirs / "new").exists()


def test_code_that_another_user_can_change_is_named(theirs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (theirs / "roots" / "run.py").touch()
    warn_of_code((str(theirs / "roots" / "run.py"), str(theirs / "roots"), sys.executable), Log())
    text = "another user can change the code that root runs"
    (line,) = [line for line in capfd.readouterr().err.splitlines() if text in line]
    assert f"{theirs} belongs to user {others.UID}; chown root {theirs}" in line


def test_incidents_of_another_user_are_neither_written_nor_read(theirs: Path, tmp_path: Path) -> None:
    with pytest.raises(MonitorError, match=f"{theirs} belongs to user {others.UID}"):
        IncidentStore(theirs / "roots" / "incidents").add(SAMPLES[0])
    assert list((theirs / "roots").iterdir()) == []
    store = IncidentStore(tmp_path / "incidents")
    store.add(SAMPLES[0])
    assert len(store.list()) == 1
    (file,) = store.path.iterdir()
    os.chown(file, others.UID, -1)
    reader = IncidentReader(store.path)
    assert (reader.list(), reader.unreadable) == ([], 1)
    os.chown(store.path, others.UID, -1)
    with pytest.raises(MonitorError, match=f"{store.path} belongs to user {others.UID}; chown root .* another user"):
        reader.list()


def test_no_recording_begins_where_another_user_can_replace_the_directory(theirs: Path, shared: Path) -> None:
    with pytest.raises(ConfigError, match=f"--record: {theirs} belongs to user {others.UID}: root writes there"):
        build({"record": str(theirs / "roots" / "file")})
    assert build({"record": str(shared / "file")}).record == str(shared / "file")  # as in /tmp
    others.does(f"open('{shared}/file', 'w')")
    with pytest.raises(ConfigError, match=f"{shared}/file belongs to user {others.UID}"):
        build({"record": str(shared / "file")})


def test_a_fifo_in_the_place_of_an_older_recording_is_not_waited_for(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a file when it is looked at, and a FIFO when it is opened: to wait for a reader is a hang."""
    path = shared / "file"
    others.does(f"open('{path}', 'w').write('x')")
    looked = os.lstat(path)
    path.unlink()
    others.does(f"os.mkfifo('{path}')")
    monkeypatch.setattr("monitor.side.recording.os.lstat", lambda _: looked)
    writer = Writer(path, {})
    with pytest.raises(OSError, match="no regular file"):
        writer.write(0, [b"{}"])


def test_a_run_directory_that_another_user_can_replace_is_not_asked(
    theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRACE_RUN_DIR", str(theirs / "roots"))
    with pytest.raises(MonitorError, match=f"{theirs} belongs to user {others.UID}"):
        running()


def test_a_daemon_of_another_user_is_not_believed(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket is in root's directory, by a directory that was root's alone only later."""
    monkeypatch.setenv("OUTRACE_RUN_DIR", str(tmp_path))
    path = shared / SOCKET
    code = f"""
listener = socket.socket(socket.AF_UNIX)
listener.bind("{path}")
listener.listen()
print("listens", flush=True)
time.sleep(60)
"""
    with others.doing(code):
        path.rename(tmp_path / path.name)
        os.chown(tmp_path / path.name, 0, 0)
        assert running() is None
    assert f"a process of user {others.UID} listens there" in capsys.readouterr().err


# A configuration is root's alone: it names commands that root runs and pods that go first.
OWN = "reclaim-images: [sh, -c, 'id > /tmp/owned']\n"
KUBELETS = f"{KUBELET}evictionHard: {{memory.available: 90%}}\n"


@pytest.mark.parametrize(("name", "text", "position"), [("own.yaml", OWN, 0), ("kubelet.yaml", KUBELETS, 1)])
def test_a_file_of_another_user_is_refused(tmp_path: Path, name: str, text: str, position: int) -> None:
    """The own one, and a kubelet's."""
    path = write(tmp_path, name, text)
    files: list[str | None] = [None] * 2
    files[position] = path
    assert build({}, *files) != build({})
    os.chown(path, others.UID, -1)
    with pytest.raises(ConfigError, match=rf"{path}: .*{path} belongs to user {others.UID}; chown root {path}"):
        build({}, *files)


def test_a_file_that_another_user_can_replace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    path = write(tmp_path / "d", "own.yaml", OWN)
    (tmp_path / "d").chmod(0o777)
    with pytest.raises(ConfigError, match=r"\(mode 777\) can be written by others"):
        build({}, path)


def test_a_link_of_another_user_to_a_file_of_roots_is_refused(tmp_path: Path) -> None:
    """It leads elsewhere at the next start."""
    (tmp_path / "link").symlink_to(write(tmp_path, "own.yaml", OWN))
    os.lchown(tmp_path / "link", others.UID, -1)
    with pytest.raises(ConfigError, match=rf"link belongs to user {others.UID}"):
        build({}, str(tmp_path / "link"))


@pytest.mark.parametrize("how", ["file", "pipe"])
def test_what_the_caller_hands_over_is_the_callers_word(tmp_path: Path, how: str) -> None:
    """`sudo outrace run --config /dev/stdin < mine.yaml`: no other user can change which file that is."""
    path = write(tmp_path, "own.yaml", "listen: 0.0.0.0:1\n")
    os.chown(path, others.UID, -1)
    code = "from monitor.settings.read import read; print(read({}, '/dev/stdin').config.listen_port)"
    with open(path) as file:
        where = {"stdin": file} if how == "file" else {"input": file.read()}
        done = subprocess.run([sys.executable, "-c", code], **where, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
