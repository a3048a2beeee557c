"""The default threshold of a machine for which nobody has reserved memory (``--pods services``).

The kubelet's formula takes for available whatever is neither a process's nor page cache: also what the kernel holds for
itself and the pages that it keeps free (vm.min_free_kbytes). On a node, systemReserved and a threshold that somebody
chose make up for that. On a VM of 1 GiB these are some 100 MiB, so that at the kubelet's default the OOM killer comes
first, and unseen. There it means 100 MiB that processes can still get.
"""

from __future__ import annotations

from dataclasses import replace

from monitor.policy import configuration
from monitor.policy.configuration import DEFAULT, HARD, Given
from monitor.policy.quantity import Quantity
from monitor.policy.releases import era
from monitor.policy.signals import MEMORY
from monitor.settings.config import RunConfig
from monitor.settings.read import from_inputs, to_inputs

_MI = 1 << 20


def over_the_kernels_share(config: RunConfig, share: int) -> RunConfig:
    """The configuration with the default hard threshold of memory so many bytes higher, instead of by the share that it
    has now; the same where a threshold was given, or the release has none.
    """
    before, config = _origin(config), replace(config, kernels_share=share)
    if config.origins.get("eviction_hard") not in (DEFAULT, before) or before == "":
        return config
    rules, origin = era(config.policy), _origin(config)
    own, file, drop_ins = from_inputs(config.inputs)
    own.pop(HARD, None)
    if share > 0:
        line = -(-Quantity.parse(rules.default_hard[MEMORY]).value // _MI) + _mib(share)
        own[HARD] = Given({**rules.default_hard, MEMORY: f"{line}Mi"}, origin)
    settings = configuration.in_force(file, drop_ins, own, rules)
    return replace(
        config,
        eviction_hard=settings.texts(HARD),
        origins={**config.origins, "eviction_hard": settings.origins[HARD]},
        inputs=to_inputs(own, file, drop_ins),
    )


def _origin(config: RunConfig) -> str:
    """Of the default threshold over this share; "" where the release has none."""
    default = era(config.policy).default_hard.get(MEMORY)
    return "" if default is None else f"{DEFAULT} {default}, and {_mib(config.kernels_share)}Mi that the kernel keeps"


def _mib(size: int) -> int:
    return -(-size // _MI)
