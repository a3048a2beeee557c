"""The store of incidents in the state dir."""
