"""Where numbers come from: the BPF programs, or files."""
