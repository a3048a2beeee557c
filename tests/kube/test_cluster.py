"""Where the cluster is: in a pod, and by kubeconfig; whatever is wrong names file and key."""

import base64
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from monitor.errors import CannotError, ConfigError
from monitor.kube.cluster import in_cluster
from monitor.kube.kubeconfig import default_paths, find, load
from tests.kube.fake_tls import Authority, Pair

Config = dict[str, Any]
ENV = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.mark.parametrize("host", ["10.96.0.1", "fd00::1", "[fd00::1]"])
def test_a_pod_knows_its_api_server(secrets: Path, host: str) -> None:
    config = in_cluster({**ENV, "KUBERNETES_SERVICE_HOST": host}, secrets)
    assert str(config.server) == ("https://10.96.0.1:443" if "." in host else "https://[fd00::1]:443")
    assert config.credentials.current() == "good"


def test_outside_of_a_pod_the_error_names_that() -> None:
    with pytest.raises(CannotError, match=r"KUBERNETES_SERVICE_HOST .* not set; give a kubeconfig"):
        in_cluster({})


@pytest.mark.parametrize(
    ("file", "data", "expected"),
    [
        ("token", None, "token: No such file"),
        ("ca.crt", None, "ca.crt: No such file"),
        ("ca.crt", b"", "no certificates in PEM"),
        ("ca.crt", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "no certificates in PEM"),
    ],
)
def test_bad_secrets_of_a_pod(secrets: Path, file: str, data: bytes | None, expected: str) -> None:
    (secrets / file).unlink()
    if data is not None:
        (secrets / file).write_bytes(data)
    with pytest.raises(ConfigError, match=re.escape(expected)) as caught:
        in_cluster(ENV, secrets)
    assert str(secrets / file) in str(caught.value)


@pytest.mark.parametrize("port", ["x", "0", "70000", "-1", "443x", "٤"])
def test_a_bad_port_of_a_pod(secrets: Path, port: str) -> None:
    with pytest.raises(ConfigError, match="KUBERNETES_SERVICE_PORT"):
        in_cluster({**ENV, "KUBERNETES_SERVICE_PORT": port}, secrets)


def listed(kind: str, **entries: Config) -> list[Config]:
    return [{"name": name.replace("_", "-"), kind: entry} for name, entry in entries.items()]


@pytest.fixture
def good(authority: Authority, serving: Pair) -> Config:
    """With one of everything: contexts `by-token` and `by-certificate`."""

    def data(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    lab = {
        "server": "https://lab.example:6443/prefix/",
        "certificate-authority": str(authority.certificate),
        "tls-server-name": "kubernetes",
    }
    with_data = {"server": "https://[::1]:6443", "certificate-authority-data": data(authority.certificate)}
    insecure = {"server": "https://10.0.0.1", "insecure-skip-tls-verify": True}
    certificate = {"client-certificate-data": data(serving.certificate), "client-key-data": data(serving.key)}
    files = {"client-certificate": str(serving.certificate), "client-key": str(serving.key)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "by-token",
        "clusters": listed("cluster", lab=lab, with_data=with_data, insecure=insecure),
        "users": listed("user", token={"token": "secret"}, certificate=certificate, files=files),
        "contexts": listed(
            "context",
            by_token={"cluster": "lab", "user": "token"},
            by_certificate={"cluster": "with-data", "user": "certificate"},
            by_files={"cluster": "insecure", "user": "files"},
        ),
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(config: object, name: str = "config") -> Path:
        path = tmp_path / name
        path.write_text(config if isinstance(config, str) else yaml.safe_dump(config))
        return path

    return write


Write = Callable[..., Path]


def test_the_current_context_and_one_by_name(good: Config, write: Write) -> None:
    path = write(good)
    config = load((path,))
    assert str(config.server) == "https://lab.example:6443/prefix"
    assert config.tls.server_name == "kubernetes"
    assert config.credentials.current() == "secret"
    other = load((path,), "by-certificate")
    assert str(other.server) == "https://[::1]:6443"
    assert other.credentials.current() == ""
    assert other.tls.client is not None
    files = load((path,), "by-files")
    assert files.tls.insecure
    assert (files.server.port, len(list(files.tls.files()))) == (443, 2)


def test_paths_are_relative_to_their_file(good: Config, write: Write, authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(authority.certificate.read_bytes())
    (tmp_path / "token").write_text("from-file")
    good["clusters"][0]["cluster"]["certificate-authority"] = "ca.crt"
    good["users"][0]["user"] = {"tokenFile": "token", "token": "older"}  # the file goes first, as in client-go
    config = load((write(good),))
    assert config.credentials.current() == "from-file"


def test_of_several_files_the_first_that_names_a_thing_wins(good: Config, write: Write, tmp_path: Path) -> None:
    first = write({"current-context": "by-files", "users": [{"name": "token", "user": {"token": "mine"}}]}, "first")
    paths = (first, tmp_path / "missing", write(good, "second"))
    assert load(paths).tls.insecure
    assert load(paths, "by-token").credentials.current() == "mine"


def test_where_kubectl_looks() -> None:
    assert default_paths({"KUBECONFIG": "/a::/b", "HOME": "/h"}) == (Path("/a"), Path("/b"))
    assert default_paths({"HOME": "/h"}) == (Path("/h/.kube/config"),)


def test_which_cluster_is_meant(good: Config, write: Write, secrets: Path, tmp_path: Path) -> None:
    path = write(good)
    (tmp_path / "home/.kube").mkdir(parents=True)
    home = {"HOME": str(tmp_path / "home")}
    pod = {**ENV, **home}

    def meant(env: dict[str, str], kubeconfig: str = "", context: str = "") -> str:
        return find(kubeconfig, context, env=env, service_account=secrets).server.host

    assert meant(pod) == "10.96.0.1"
    assert meant({**pod, "KUBECONFIG": str(path)}) == "lab.example"
    assert meant(pod, str(path), "by-files") == "10.0.0.1"
    with pytest.raises(CannotError, match=r"not in a cluster.*; give a kubeconfig"):
        meant(home)
    (tmp_path / "home/.kube/config").write_text(path.read_text())
    assert meant(pod) == "10.96.0.1"
    assert meant(home) == meant(pod, context="by-token") == "lab.example"
    (secrets / "token").unlink()
    assert meant(pod) == "lab.example"


def entry(kind: str, key: str, value: object, context: str = "by-token") -> tuple[str, list[object], object, str]:
    at: dict[str, int] = {"by-token": 0, "by-certificate": 1}
    return context, [f"{kind}s", at[context], kind, key], value, f"{kind}.{key}"


cluster, user = partial(entry, "cluster"), partial(entry, "user")


@pytest.mark.parametrize(
    ("context", "path", "value", "key"),
    [
        cluster("server", "lab.example:6443"),
        cluster("server", "https://user:pw@lab.example"),
        cluster("server", "https://lab.example/?x=1"),
        cluster("certificate-authority", "/no/such/ca.crt"),
        cluster("certificate-authority", "/dev/null"),
        cluster("certificate-authority", ["a"]),
        cluster("certificate-authority-data", "%%%"),
        cluster("insecure-skip-tls-verify", "yes"),
        cluster("insecure-skip-tls-verify", True),  # beside a CA
        cluster("proxy-url", "http://proxy:3128"),
        user("token", "a b"),
        user("token", "secret\r\nX-Evil: 1"),
        user("token", 5),
        user("tokenFile", "/no/such/token"),
        user("auth-provider", {"name": "gcp"}),
        user("as", "admin"),
        ("by-token", ["users", 0, "user", "client-certificate"], "/some/file", "user.client-key: is missing"),
        ("by-files", ["users", 2, "user", "client-certificate"], "/no/such/file", "user.client-certificate"),
        user("client-key-data", base64.b64encode(b"no key").decode(), "by-certificate"),
        ("by-certificate", ["users", 1, "user", "client-key-data"], "", "user.client-key: is missing"),
        user("exec", "aws"),
        ("by-token", ["users", 0, "user"], "text", "users[token].user"),
        ("by-token", ["clusters"], {"lab": {}}, "clusters"),
        ("by-token", ["clusters", 0, "name"], "renamed", "context.cluster"),
        ("by-token", ["users", 0, "name"], "renamed", "context.user"),
        ("", ["current-context"], "nowhere", "current-context"),
        ("", ["current-context"], "", "current-context"),
        ("nowhere", ["users"], [], "the context"),
        ("by-token", ["kind"], "Pod", "kind"),
    ],
)
def test_each_bad_value_names_file_and_key(
    good: Config, write: Write, context: str, path: list[Any], value: object, key: str
) -> None:
    inside: Any = good
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = value
    where = write(good)
    with pytest.raises(ConfigError) as caught:
        load((where,), context)
    message = str(caught.value)
    assert str(where) in message
    assert key in message
    assert "\n" not in message
    assert "Evil" not in message
    assert len(message) < 400


@pytest.mark.parametrize("text", ["", "a: [", "- 1", "clusters: 5", "\x00", "a: &a [*a]", "x: 1\n---\ny: 2\n"])
def test_what_is_no_kubeconfig(write: Write, text: str) -> None:
    with pytest.raises(ConfigError, match="config"):
        load((write(text),))


def test_no_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load((tmp_path / "none",))
    with pytest.raises(ConfigError, match=r"none of .* exists"):
        load((tmp_path / "a", tmp_path / "b"))


@pytest.mark.parametrize(
    ("env", "named"),
    [
        pytest.param({"HOME": "{closed}"}, "{closed}/.kube/config", id="home"),
        pytest.param({"KUBECONFIG": "{closed}/a:{open}"}, "{closed}/a", id="first"),
        pytest.param({"KUBECONFIG": "{open}:{closed}/a"}, "{closed}/a", id="second"),
        pytest.param(ENV, "{closed}/token", id="pod"),
    ],
)
def test_what_may_not_be_looked_at_is_named_and_not_passed_over(good: Config, env: dict[str, str], named: str) -> None:
    """As by kubectl: "permission denied". It was a traceback."""
    with TemporaryDirectory() as where:  # not tmp_path, which no other user may enter
        os.chmod(where, 0o755)
        places = {"closed": f"{where}/closed", "open": f"{where}/config"}
        Path(places["closed"]).mkdir(mode=0)
        Path(places["open"]).write_text(yaml.safe_dump(good))
        made = {key: value.format(**places) for key, value in env.items()}
        was = os.geteuid()
        if was == 0:
            os.seteuid(65534)  # root may look anywhere
        try:
            with pytest.raises(ConfigError, match=re.escape(f"{named.format(**places)}: Permission denied")):
                find(env=made, service_account=Path(places["closed"]))
        finally:
            os.seteuid(was)
