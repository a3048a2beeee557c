"""outrace: an eBPF-assisted, low-latency memory pressure monitor for Linux VMs and Kubernetes nodes."""

__version__ = "0.2.0"
