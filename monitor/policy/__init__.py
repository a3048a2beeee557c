"""The kubelet's decisions as pure functions over values: no clock, no files, no sockets, standard library only."""
