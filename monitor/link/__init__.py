"""What the hot process and the side share: messages, counters, clocks."""
