"""The thin layer over the kernel: BTF, BPF loader and pins, cgroup files, scheduling, signals."""
