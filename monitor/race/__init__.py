"""Which side won the race between eviction and the OOM killer, by how much, and why. Pure: values in, values out."""
