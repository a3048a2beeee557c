"""The other flags of a kubelet, of Kubernetes 1.6 to 1.36: known, so that whole command lines can be read."""

from __future__ import annotations

_SWITCHES = """
    allow-privileged alsologtostderr anonymous-auth authentication-token-webhook cert-require-file contention-profiling
    cpu-cfs-quota disable-kubelet-filesystem-eviction enable-cadvisor-json-endpoints enable-controller-attach-detach
    enable-custom-metrics enable-debugging-handlers enable-load-reader enable-server exit-on-lock-contention
    experimental-check-node-capabilities-before-mount experimental-fail-swap-on
    fail-swap-on help keep-terminated-pod-volumes log-cadvisor-usage logtostderr make-iptables-util-chains
    network-plugin-is-cni protect-kernel-defaults redirect-container-streaming register-node
    register-schedulable require-kubeconfig rotate-certificates rotate-server-certificates runonce
    seccomp-default serialize-image-pulls skip-headers skip-log-headers one-output
    containerized docker-tls add-dir-header fail-cgroupv1 log-json-split-stream log-text-split-stream
    storage-driver-secure
"""
_WITH_VALUE = """
    address allowed-unsafe-sysctls api-servers application-metrics-count-limit authentication-token-webhook-cache-ttl
    authorization-mode authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl
    azure-container-registry-config boot-id-file bootstrap-checkpoint-path bootstrap-kubeconfig cadvisor-port cert-dir
    cgroup-driver cgroup-root chaos-chance client-ca-file cloud-config cloud-provider cluster-dns cluster-domain
    cni-bin-dir cni-cache-dir cni-conf-dir config config-dir configure-cbr0 container-hints container-log-max-files
    container-log-max-size container-runtime container-runtime-endpoint containerd containerd-namespace cos
    cpu-cfs-quota-period cpu-manager-policy cpu-manager-policy-options cpu-manager-reconcile-period docker
    docker-endpoint docker-env-metadata-whitelist docker-only docker-root docker-tls-ca docker-tls-cert
    docker-tls-key dynamic-config-dir event-burst event-qps event-storage-age-limit event-storage-event-limit
    exec-probe-timeout experimental-bootstrap-kubeconfig experimental-dockershim-root-directory
    experimental-mounter-path experimental-mounter-rootfs-path feature-gates
    file-check-frequency global-housekeeping-interval google-json-key hairpin-mode healthz-bind-address healthz-port
    host-ipc-sources host-network-sources host-pid-sources hostname-override housekeeping-interval http-check-frequency
    image-credential-provider-bin-dir image-credential-provider-config image-pull-progress-deadline
    image-service-endpoint init-config-dir iptables-drop-bit iptables-masquerade-bit kube-api-burst
    kube-api-content-type
    kube-api-qps kubeconfig kubelet-cgroups lock-file log-backtrace-at log-dir log-file log-file-max-size
    log-flush-frequency log-json-info-buffer-size log-text-info-buffer-size
    logging-format low-diskspace-frequency machine-id-file manifest-url manifest-url-header master-service-namespace
    max-housekeeping-interval max-open-files max-pods memory-manager-policy network-plugin network-plugin-dir
    network-plugin-mtu node-ip node-labels node-status-max-images node-status-update-frequency non-masquerade-cidr
    oom-score-adj pod-cidr pod-infra-container-image pod-manifest-path pod-max-pids pods-per-core port
    provider-id read-only-port register-with-taints registry-burst registry-qps resolv-conf resource-container
    rkt-api-endpoint rkt-path root-dir runtime-cgroups runtime-request-timeout seccomp-profile-root
    stderrthreshold storage-driver-buffer-duration storage-driver-db storage-driver-host storage-driver-password
    storage-driver-table storage-driver-user streaming-connection-idle-timeout sync-frequency
    system-cgroups system-container tls-cert-file tls-cipher-suites tls-min-version tls-private-key-file
    topology-manager-policy topology-manager-policy-options topology-manager-scope v version vmodule volume-plugin-dir
    volume-stats-agg-period
"""
#: They may stand alone, and a value has to follow after `=`.
OTHER_SWITCHES = frozenset(_SWITCHES.split())
OTHERS = OTHER_SWITCHES | frozenset(_WITH_VALUE.split())
