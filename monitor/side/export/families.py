"""How a metric is declared: its name without `outrace_`, its help, its value, or its values by label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    name: str, text: str, values: Mapping[str, tuple[Sequence[tuple[str, float]], float]], *labels: str
) -> Metric:
    """``values``: the label (without labels: "") -> (upper bound, how many up to it), the last "+Inf"; their sum."""
    family = HistogramMetricFamily(f"outrace_{name}", text, labels=labels)
    for key, (buckets, total) in values.items():
        family.add_metric((key,) if labels else (), buckets, total)
    return family
