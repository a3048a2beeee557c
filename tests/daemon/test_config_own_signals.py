"""Thresholds by outrace's own signals: where they may be written, and where not."""

from pathlib import Path

import pytest

from monitor.cli.main import main
from monitor.errors import ConfigError
from monitor.kernel import loader
from monitor.settings.config import RunConfig
from monitor.settings.read import build, read
from tests.daemon.config_files import KUBELET, write

HARD = {"eviction-hard": "memory.reclaimable<100Mi"}


def signals(config: RunConfig) -> list[str]:
    return [threshold.signal for threshold in config.thresholds()]


def test_in_a_flag_and_in_outraces_own_file(tmp_path: Path) -> None:
    both = ["memory.reclaimable", "allocatableMemory.reclaimable"]
    assert signals(build(HARD)) == both
    own = write(tmp_path, "outrace.yaml", "eviction-hard: {memory.reclaimable: 100Mi}\n")
    assert signals(build({}, own)) == both
    found = read(
        {**HARD, "eviction-soft": "memory.obtainable<5%", "eviction-soft-grace-period": "memory.obtainable=1m"}
    )
    shown = [(e.threshold.signal, e.origin) for e in found.settings.thresholds()]
    assert ("memory.obtainable", "--eviction-soft") in shown
    assert ("allocatableMemory.reclaimable", "copy of memory.reclaimable (--eviction-hard)") in shown


def test_a_flag_over_a_kubelets_file(tmp_path: Path) -> None:
    """It replaces the whole map, as the kubelet's own flag does."""
    file = write(tmp_path, "kubelet.yaml", KUBELET + "evictionHard: {memory.available: 300Mi, nodefs.available: 7%}\n")
    assert signals(build(HARD, None, file)) == ["memory.reclaimable", "allocatableMemory.reclaimable"]


@pytest.mark.parametrize("key", ["evictionHard", "evictionSoft", "evictionMinimumReclaim"])
def test_a_kubelets_file_may_not_have_them(tmp_path: Path, key: str) -> None:
    file = write(tmp_path, "kubelet.yaml", KUBELET + f"{key}: {{memory.reclaimable: 100Mi}}\n")
    with pytest.raises(ConfigError) as caught:
        build({}, None, file)
    assert caught.value.message == (
        f"{file}: {key}: memory.reclaimable: 100Mi: unsupported eviction signal memory.reclaimable"
    )
    assert caught.value.remedy == "it is outrace's own, and a kubelet refuses it: give it to outrace by --eviction-hard"


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        (["--eviction-hard=memory.reclaimable<1Gi"], "evictionHard"),
        (
            ["--eviction-soft=memory.obtainable<1Gi", "--eviction-soft-grace-period=memory.obtainable=1m"],
            "evictionSoftGracePeriod",
        ),
        (["--eviction-minimum-reclaim=memory.reclaimable=1Gi"], "evictionMinimumReclaim"),
    ],
)
def test_translating_a_kubelets_flags_never_makes_one(
    flags: list[str], key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "translate", "--", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{key}: memory." in err
    assert "unsupported eviction signal" in err
    assert "a kubelet refuses it" in err


def test_a_mistyped_one_is_refused_with_all_that_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        build({"eviction-hard": "memory.reclaimble<100Mi"})
    assert "memory.available" in caught.value.remedy
    assert "memory.reclaimable, allocatableMemory.reclaimable, memory.obtainable" in caught.value.remedy


@pytest.mark.parametrize(
    ("hard", "level"),
    [
        ("memory.available<100Mi", loader.KUBELETS),
        ("nodefs.available<1%", loader.KUBELETS),
        ("memory.reclaimable<100Mi", loader.RECLAIMABLE),
        ("memory.obtainable<100Mi,memory.available<1Gi", loader.OBTAINABLE),
    ],
)
def test_only_who_asks_for_a_formula_has_it_compiled(hard: str, level: int) -> None:
    assert build({"eviction-hard": hard}).formulas == level
