// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
// Processes that appear in a watched pod: outrace sets their oom_score_adj by QoS.

BPF_RINGBUF_OUTPUT(procs, 64);  // pages: 256 KiB, about 5,400 records

// Of one pod: 500 a second are reported one by one, and 1000 at once (a container that starts). Of a pod that has more, the reader
// of the ring checks all processes.
#define PROC_NS 2000000ULL
#define PROC_BURST 1000

static __always_inline void send_proc(u64 css, u32 tgid, u32 kind) {
  struct proc_event e = {};
  u32 at = nearest_domain(css, DOMAIN_POD, &e.cgroup_id);
  if (!at) return;
  struct domain *d = domain_at(at);
  e.ts_ns = bpf_ktime_get_ns();
  if (d && !afford(&d->proc_due, &d->proc_over, e.ts_ns, PROC_NS, PROC_BURST)) return;
  e.kind = kind;
  e.tgid = tgid;
  e.domain = at - 1;
  count(procs.ringbuf_output(&e, sizeof(e), 0) ? COUNT_LOST_PROC : COUNT_EMIT_PROC);
}

int on_fork(struct bpf_raw_tracepoint_args *ctx) {  // (parent, child)
  u32 tgid = 0, tid = 0;
  READ(tgid, ctx->args[1], OFF_TASK_TGID);
  READ(tid, ctx->args[1], OFF_TASK_PID);
  if (tgid == tid) send_proc(task_css(ctx->args[1]), tgid, PROC_FORK);
  return 0;
}

int on_exec(struct bpf_raw_tracepoint_args *ctx) {  // (task, old pid, binprm)
  send_proc(task_css(bpf_get_current_task()), bpf_get_current_pid_tgid() >> 32, PROC_EXEC);
  return 0;
}

// A runtime forks first and moves the child into the container afterwards. The tracepoint fires for every hierarchy; only memory's counts,
// because inode numbers of different hierarchies overlap.
int on_attach(struct bpf_raw_tracepoint_args *ctx) {  // (destination cgroup, path, task, threadgroup)
  u64 cgroup = ctx->args[0], root = 0, css = 0;
  u32 mask = 0, tgid = 0;
  READ(root, cgroup, OFF_CGROUP_ROOT);
  READ(mask, root, OFF_CGROUP_ROOT_SUBSYS_MASK);
  if (!(mask & (1 << MEMORY_CGRP_ID))) return 0;
  READ(css, cgroup, OFF_CGROUP_SUBSYS + 8 * MEMORY_CGRP_ID);
  READ(tgid, ctx->args[2], OFF_TASK_TGID);
  send_proc(css, tgid, PROC_ATTACH);
  return 0;
}
