"""The questions to a tree: commands on fixed state, and command lines that it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kept import ROOT

JSON, TEXT, SHAPE = "json", "text", "shape"


@dataclass(frozen=True)
class Question:
    """``kind``: how stdout is kept: as JSON, as lines, or only which keys it has. ``vary``: patterns of paths whose
    values are of this machine or moment.
    """

    name: str
    words: tuple[str, ...]
    kind: str = JSON
    vary: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def replays(place: Path) -> Iterator[Question]:
    """Every recording; some of them also as text and with other settings."""
    for archive in sorted(place.iterdir()):
        for number, path in enumerate(sorted(archive.glob("*.rec"))):
            words, name = ("replay", str(path)), f"{archive.name}/{path.stem}"
            yield Question(name, (*words, "-o", "json"))
            if number % 12 == 0:
                yield Question(f"{name} as text", words, TEXT)
                changes = (("--eviction-hard", "memory.available<40%"), ("--policy", "kubelet-1.8"))
                for option, value in changes:
                    yield Question(f"{name} {option} {value}", (*words, option, value, "-o", "json"))


def commands(files: Path, state: Path) -> Iterator[Question]:
    yield from _incidents("--state-dir", str(state), "--no-daemon")
    yield from _configuration(files)
    yield from _reserve(files)
    for path in sorted((ROOT / "tests/data/policy").glob("*.gz")):
        yield Question(f"commands/conformance {path.name}", ("conformance", "-o", "json", str(path)))
    for command in ("daemons", "reload"):
        yield Question(f"commands/{command}", (command, "-o", "json"))
    machine = ("--no-daemon", "--state-dir", str(files / "nothing"), "-o", "json")
    yield Question("commands/doctor", ("doctor", *machine), SHAPE)
    for command in (("top", "--once"), ("explain",)):
        yield Question(f"commands/{command[0]} machine", (*command, "--pods", "cgroups", *machine), SHAPE)


def _incidents(*state: str) -> Iterator[Question]:
    time = ("--since", "2020-01-01T00:00:00Z", "--until", "2030-01-01T00:00:00Z")
    lists = [(), ("--limit", "7"), time, ("--pod", "shop/cart"), ("--since", "2026-01-31T04:00:00Z")]
    verdicts = ("eviction_won", "oom_unseen", "oom_before_decision", "oom_during_grace", "oom_after_eviction")
    lists += [("--verdict", name) for name in (*verdicts, "own_limit", "relieved", "undetermined")]
    flags = ("global", "wrong_victim", "collateral", "over_eviction", "user_kill", "lost_events", "braked", "held")
    lists += [("--flag", name) for name in flags]
    for more in lists:
        words = ("incidents", "list", *more, *state)
        yield Question(f"commands/incidents list {' '.join(more)}".strip(), (*words, "-o", "json"))
    yield Question("commands/incidents list as text", ("incidents", "list", *state), TEXT)
    for one in ("latest", "2026-01-31T03", "2026-01-31T04", "2026-01-31T05", "20260130-192320.000-node-12"):
        words = ("incidents", "show", one, *state)
        yield Question(f"commands/incidents show {one}", (*words, "-o", "json"))
        yield Question(f"commands/incidents show {one} as text", words, TEXT)
        yield Question(f"commands/incidents show {one} as a page", (*words, "--html"), TEXT)
    yield Question("commands/incidents export", ("incidents", "export", "-", *state), TEXT)
    for command in (("incidents", "advise"), ("report", *time)):
        words = (*command, *state)
        yield Question(f"commands/{' '.join(command[:2])}", (*words, "-o", "json"))
        yield Question(f"commands/{' '.join(command[:2])} as text", words, TEXT)


#: Name -> options of `config show` and `config check`.
_CONFIGURATIONS = {
    "defaults": "",
    "hold": "--mode hold --hold-limit 90s",
    "enforce": "--enforce --trigger kernel",
    "grace": "--mode enforce --hard-grace 5s",
    "api": "--mode enforce --evict-by kill --node-taints none --node-name n",
    "clash": "--enforce --hard-grace 5s --trigger kernel",
    "soft": "--eviction-soft memory.available<300Mi --eviction-soft-grace-period memory.available=1m30s"
    " --eviction-max-pod-grace-period 30 --eviction-minimum-reclaim memory.available=100Mi",
    "own signal": "--eviction-hard memory.reclaimable<200Mi,memory.available<5%",
    "reserved": "--system-reserved memory=500Mi --kube-reserved memory=300Mi,cpu=100m",
    "allocatable": "--enforce-node-allocatable pods,kube-reserved --kube-reserved memory=300Mi",
    "1.8": "--policy kubelet-1.8 --eviction-pressure-transition-period 30s",
    "surprising": "--eviction-hard memory.available<1Mi,nodefs.available<90% --eviction-pressure-transition-period 0s",
    "disks": "--eviction-hard nodefs.available<10%,imagefs.inodesFree<5%,pid.available<100 --reclaim-images crictl",
    "own.yaml": "--config {files}/own.yaml",
    "own.toml": "--config {files}/own.toml",
    "kubelet": "--kubelet-config {files}/kubelet.yaml",
    "alerts": "--alertmanager http://127.0.0.1:9093 --expose-metrics",
}
_FLAGS = (
    "--eviction-hard=memory.available<200Mi,nodefs.available<10%",
    "--eviction-hard=memory.available<5% --eviction-soft=memory.available<10%"
    " --eviction-soft-grace-period=memory.available=90s --eviction-max-pod-grace-period=60",
    "--experimental-kernel-memcg-notification=true --eviction-minimum-reclaim=memory.available=50Mi",
    "--system-reserved=memory=1Gi,cpu=500m --kube-reserved=memory=1Gi --enforce-node-allocatable=pods",
    "--low-diskspace-threshold-mb=512 --image-gc-high-threshold=85 --image-gc-low-threshold=80",
    "--eviction-pressure-transition-period=30s --cgroup-root=/x --cgroups-per-qos=true --max-pods=60",
    "--eviction-hard=memory.available<200Mi --foo=1",
    "--eviction-hard=memory.available",
)


def _configuration(files: Path) -> Iterator[Question]:
    here = ("--pods", f"manifests:{files}/manifests", "--state-dir", "/var/lib/outrace")
    vary = tuple(f"out.thresholds.*.{key}" for key in ("capacity", "quantity"))
    for name, text in _CONFIGURATIONS.items():
        words = (*text.format(files=files).split(), *here, "-o", "json")
        memory = ("out.warnings.1",) if name == "own signal" else ()  # names the machine's
        yield Question(f"commands/config show {name}", ("config", "show", "--no-daemon", *words), vary=vary + memory)
        yield Question(f"commands/config check {name}", ("config", "check", *words), vary=memory)
    for flags in _FLAGS:
        words = ("config", "translate", "-o", "json", "--", *flags.split())
        yield Question(f"commands/config translate {flags}", words)
    for name in ("flags", "kubelet.yaml", "own.toml"):
        words = ("config", "translate", "--file", str(files / name), "--", "--max-pods=50")
        yield Question(f"commands/config translate file {name}", words, TEXT)
    yield Question("commands/config schema", ("config", "schema"))
    yield Question("commands/config example", ("config", "example"), TEXT)


def _reserve(files: Path) -> Iterator[Question]:
    for memory in ("512Mi", "2Gi", "7.5Gi", "16Gi", "200Gi"):
        cases = [("--system-reserved", "memory=256Mi,cpu=200m", "--cpu", "4")]
        cases += [("--kubelet-config", str(files / "kubelet.yaml")), ("--eviction-hard", "memory.available<10%")]
        cases += [("--huge-pages", "256Mi", "--data-disk", "100Gi"), ("--enforce-node-allocatable", "none")]
        for model in ("cce-v1", "cce-v2"):
            for pods in ("20", "110"):
                size = ("--cpu", "4", "--max-pods", pods, "--data-disk", "100Gi")
                cases += [("--model", model, *size), ("--model", model, *size, "--runtime", "docker")]
        for case in cases:
            words = ("reserve", "--memory", memory, *case)
            name = " ".join(words).replace(str(files), "FILES")
            yield Question(f"commands/{name}", (*words, "-o", "json"))
    words = ("reserve", "--memory", "16Gi")
    yield Question("commands/reserve as text", words, TEXT)
    yield Question("commands/reserve as kubelet-config", (*words, "-o", "kubelet-config"), TEXT)


FILES = {
    "own.yaml": "eviction-hard: {memory.available: 300Mi}\nmode: hold\n"
    "services: {'web*': {priority: 10, never: true}}\n",
    "own.toml": 'mode = "enforce"\ntrigger = "kernel"\n[eviction-soft]\n"memory.available" = "10%"\n'
    '[eviction-soft-grace-period]\n"memory.available" = "1m"\n',
    "kubelet.yaml": "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
    "evictionHard: {memory.available: 250Mi, nodefs.available: 8%}\nsystemReserved: {memory: 512Mi}\n"
    "kubeReserved: {memory: 256Mi}\nmaxPods: 80\n",
    "flags": "--eviction-hard=memory.available<200Mi\n--v=2\n# a comment\n--cgroup-driver=systemd\n",
    "bad.yaml": "eviction-hard: {memory.avail: 1}\nnothing: 1\n",
    "wrong.yaml": "mode: [",
    "not.rec": "something else",
    "cases.json": '[{"id": "x", "op": "nothing", "input": {}, "expected": 1}]',
    "run/.keep": "",
    "manifests/web.json": '{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "web",'
    ' "uid": "1b4e28ba-2fa1-11d2-883f-0016d3cca427"}, "spec": {"containers": [{"name": "main"}]}}',
}
#: Options of `run` with a value of their own.
_VALUES = """config kubelet-config kubelet-config-dir node-cgroup pods kubelet-ca mode hold-limit hold-brake hard-grace
trigger evict-by node-taints policy compat eviction-hard eviction-soft eviction-soft-grace-period
eviction-max-pod-grace-period eviction-minimum-reclaim eviction-pressure-transition-period enforce-node-allocatable
system-reserved kube-reserved kernel-memcg-notification local-storage-capacity-isolation nodefs imagefs containerfs
reclaim-containers reclaim-images hooks max-fill-rate step listen record alertmanager webhook log-format name"""
_REFUSED = """-; nothing; cleanup; evicted run; bench giveback; bench storm; bench nothing; run nothing; run --nothing
run --eviction-hard memory.available; run --mode hold --hard-grace 5s; run --never-kill --enforce; run --config
run --config {files}/bad.yaml; run --config {files}/wrong.yaml; run --config {files}/missing.yaml
config check --config {files}/bad.yaml; config check --config {files}/wrong.yaml; config nothing
config translate --file {files}/missing; config translate; config translate --pid 0; config translate -- foo
replay; replay {files}/missing; replay {files}/not.rec; replay {files}/not.rec --policy kubelet-2.0
incidents show; incidents show nothing --state-dir {files}/nothing --no-daemon
incidents list --verdict nothing; incidents list --flag nothing; incidents list --since nothing
incidents list --limit 0; incidents list --pod nothing --no-daemon --state-dir {files}/nothing; report -o yaml
report --since nothing
reserve; reserve --memory lots; reserve --memory 1Gi --model gke; reserve --memory 1Gi --model cce-v1
reserve --memory 1Gi --system-reserved memory=2Gi; reserve --memory 16Gi --growth 0
explain --policy kubelet-2.0 --no-daemon; explain a/b --daemon nothing
top --once --daemon nothing; top --once --policy nothing; doctor nothing
doctor --daemon nothing; reload --daemon nothing
conformance; conformance {files}/missing.json; conformance {files}/cases.json; conformance {files}/not.rec
evicted; evicted list --kubeconfig {files}/missing; evicted delete --rate 0; evicted delete --older-than nothing
evicted list --keep -1; evicted list --kubeconfig {files}/not.rec; unload --nothing; daemons nothing
demo --hogs 0; demo --mode nothing; demo --margin nothing; bench race --runs 0; bench race --mode nothing
bench latency --turns 0; bench overhead --triples 1; bench scenarios --only nothing; bench kills --mode observe"""


def refused(files: Path) -> Iterator[Question]:
    """Options with a value that is none (`config check` has all of `run`), and other mistakes."""
    for name in _VALUES.split():
        for value in ("", "no such=value!"):
            words = ("config", "check", "--pods", "cgroups", f"--{name}", value)
            yield Question(f"refused/--{name} {value or 'empty'}", words, TEXT)
    for line in _REFUSED.replace("\n", ";").split(";"):
        words = tuple(line.format(files=files).split())
        # Were one of `run` not refused, the daemon would be this one's alone, until the worker ends it.
        alone = {
            "OUTRACE_STATE_DIR": f"{files}/nothing",
            "OUTRACE_LISTEN": "127.0.0.1:0",
        }
        environment = alone if words[0] == "run" else {}
        name = f"refused/{line.strip().replace('{files}/', '')}"
        yield Question(name, words if words != ("-",) else (), TEXT, environment=environment)
