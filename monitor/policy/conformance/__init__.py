"""Recorded answers of a kubelet, asked of this policy: inputs and answers as JSON in, passed or not out.

A case is `{"id", "op", "input", "expected" | "expectedOneOf"}`. The policy runs with compat "kubelet-1.36", so that it
repeats the kubelet's defects too (docs/differences.md).
"""

from monitor.policy.conformance.runner import OPS, CaseError, Failure, check_case, first_difference

__all__ = ["OPS", "CaseError", "Failure", "check_case", "first_difference"]
