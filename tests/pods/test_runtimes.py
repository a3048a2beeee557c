"""Whatever a runtime's socket answers is read: of no kernel, so not in the guests (30 s there)."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from monitor.pods import runtimes
from monitor.pods.runtimes import Known

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["Id", "Names", "Name", "Labels", "x"]), inner, max_size=5)
    ),
    max_leaves=20,
)


@given(_json)
def test_any_answer_is_read(answer: Any) -> None:
    for ident, known in runtimes.read(answer).items():
        assert isinstance(ident, str)
        assert isinstance(known, Known)
        assert "/" not in known.name
        assert all(isinstance(text, str) for pair in known.labels.items() for text in pair)
