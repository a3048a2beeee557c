"""A small node made of one cgroup, with real memory hogs: what demo, bench and tests race on."""
