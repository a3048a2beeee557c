"""The helper process: all of the daemon that may wait for a disk, a socket or another process."""
