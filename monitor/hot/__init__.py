"""The hot process: one thread from the ring record to the kill. It never waits and never writes a file."""
