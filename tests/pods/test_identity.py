"""Two cgroups whose names a person cannot tell apart are two pods: users name their units, and hide none so."""

import os

import pytest

from tests.pods.unit_tree import MANAGER, Machine, again

pytestmark = [pytest.mark.live, pytest.mark.newest]
#: Names of units that were, or look, the same as the next one.
TWINS = (
    *(b"a\x1b.scope", b"a\\x1b.scope", b"a\\x5cx1b.scope"),
    *(b"b\xff.scope", b"b\\xff.scope", "b\xff.scope".encode()),
    *(b"c\x85.scope", "c\x85.scope".encode(), b"c\\u0085.scope"),
    *(b"d.scope", b"d.scope ", b"d.scope  ", b"d.scope\t", b" d.scope", b"_d.scope", b"d.scope~2"),
    *(b"e (deleted)", b"e", b"f,task=x", b"f"),
)


@pytest.mark.parametrize("above", [f"{MANAGER}/app.slice", "system.slice"])
def test_every_twin_is_a_pod_of_its_own(machine: Machine, above: str) -> None:
    made = {machine.start(f"{above}/{os.fsdecode(name)}") for name in TWINS}
    with machine.source() as found:
        change = found.poll()
        assert change.problems == []
        assert {one.cgroup for one in found.pods.values()} == made
        shown = [(one.pod.namespace, one.pod.name) for one in found.pods.values()]
        assert len(set(shown)) == len(TWINS), "metrics, logs and commands tell them apart"
        assert all(name.isprintable() for pair in shown for name in pair)
        before = set(found.pods)
        again(found)
        assert set(found.pods) == before, "and it is the same one at every look"
