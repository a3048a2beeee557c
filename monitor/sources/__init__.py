"""Where numbers and OOM kills come from: the BPF programs, or files and the kernel's log."""
