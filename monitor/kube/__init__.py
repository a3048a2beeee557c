"""A small Kubernetes client: HTTP/1.1 over one warm connection, list and watch, the kubelet's own endpoints.

Blocking, for one thread per source; a `threading.Event` ends any call within `transport.SLICE_S` seconds.
"""
