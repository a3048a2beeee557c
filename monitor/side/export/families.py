"""How a metric is declared: its name without `outrace_`, its help, its value, or its values by label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

#: A number, or one for each label value; for each tuple of them where there are several labels.
Values = Mapping[Any, float] | float


def gauge(name: str, text: str, values: Values, *labels: str) -> Metric:
    """With ``labels``, a series for each of the keys of ``values``."""
    return _filled(GaugeMetricFamily(f"outrace_{name}", text, labels=labels), values)


def counter(name: str, text: str, values: Values, *labels: str) -> Metric:
    """As `gauge`; ``_total`` is added to the name."""
    return _filled(CounterMetricFamily(f"outrace_{name}", text, labels=labels), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
    for key, value in values.items() if isinstance(values, Mapping) else (((), values),):
        family.add_metric((key,) if isinstance(key, str) else key, float(value))
    return family


def histogram(
    name: str, text: str, values: Mapping[str, tuple[Sequence[float], Sequence[int], float]], *labels: str
) -> Metric:
    """``values``: the label (without labels: "") -> upper bounds, how many up to each and beyond, their sum."""
    family = HistogramMetricFamily(f"outrace_{name}", text, labels=labels)
    for key, (bounds, counts, total) in values.items():
        names = [*(f"{bound:g}" if bound < 1 else str(bound) for bound in bounds), "+Inf"]
        buckets = list(zip(names, map(float, accumulate(counts)), strict=True))
        family.add_metric((key,) if labels else (), buckets, total)
    return family
