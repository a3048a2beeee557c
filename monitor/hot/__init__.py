"""The hot process: one thread. Its loop waits for no disk or process, and writes only cgroup files."""
