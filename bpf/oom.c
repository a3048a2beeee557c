// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
// What the OOM killer does: which process it kills, for which task's allocation, at which limit, and when the process is gone.
// These programs stay attached while the daemon restarts; their rings are pinned, so records of that time wait for the next daemon.

BPF_RINGBUF_OUTPUT(ooms, 64);   // pages: 256 KiB, about 1,400 victims of the OOM killer
BPF_RINGBUF_OUTPUT(kills, 64);  // SIGKILLs and exits apart: while no daemon reads, ordinary kills cannot crowd out OOM kills
BPF_RINGBUF_OUTPUT(reclaims, 8);  // apart from both, because reclaim only explains a kill

struct killed {
  u64 ts_ns;
  u64 cgroup;  // its memory cgroup
  u32 sender;
  s32 si_code;
  u32 domain;
  u32 gone;  // GONE: its end was reported; UNREPORTED: neither its SIGKILL nor its end is, unless the OOM killer marks it
};
BPF_TABLE("lru_hash", u32, struct killed, killed, 4096);  // tgid -> its last SIGKILL
#define GONE 1
#define UNREPORTED 2

// SIGKILLs that processes of one pod send: 100 a second are reported, and 256 at once. A sender outside all pods (a runtime that stops a
// pod, outrace itself) uses the budget of the victim's pod, 4096 at once. So does the kernel, because a pod can make it kill: the processes
// of a pid namespace when its init ends, the processes that a process traced when that ends.
#define KILL_NS 10000000ULL
#define KILL_BURST 256
#define KILL_BURST_FROM_OUTSIDE 4096
#define SIGNAL_DELIVERED 0  // TRACE_SIGNAL_DELIVERED
#define RECLAIM_NS 100000000ULL
#define RECLAIM_BURST 16

// The hot process sends a pod's signals one after another: a wakeup for each took 20 us of 39 (an interrupt to its own CPU, p50), and up to
// 2.8 ms on a busy machine. But a ring wakes its reader only if the reader had read all records (kernel/bpf/ringbuf.c, bpf_ringbuf_commit()). So
// the first record after those without a wakeup, the exit of a victim or any other, forces one. `unheard` is written before and after the output,
// because another CPU may write a record in between.
static __always_inline void send_kill(struct oom_event *e, u32 emitted) {
  u32 zero = 0;
  struct eviction *ours = evictions.lookup(&zero);
  if (!ours) return;  // there is one entry
  int own = e->kind == OOM_KILL && e->si_code == 0 && e->invoker_tgid == ours->sender;
  u64 flags = own ? BPF_RB_NO_WAKEUP : ours->unheard ? BPF_RB_FORCE_WAKEUP : 0;
  ours->unheard = own;
  count(kills.ringbuf_output(e, sizeof(*e), flags) ? emitted + 1 : emitted);
  if (own) ours->unheard = 1;
}

static __always_inline void fill_victim(struct oom_event *e, u64 task) {
  READ(e->victim_tgid, task, OFF_TASK_TGID);
  READ(e->victim_tid, task, OFF_TASK_PID);
  bpf_probe_read_kernel(e->victim_comm, sizeof(e->victim_comm), (void *)(task + OFF_TASK_COMM));
  u64 signal = 0, css = task_css(task), id = 0;
  READ(signal, task, OFF_TASK_SIGNAL);
  s16 adj = 0;
  READ(adj, signal, OFF_SIGNAL_OOM_SCORE_ADJ);
  e->oom_score_adj = adj;
  e->victim_cgroup = cgroup_id_of(css);
  e->domain = nearest_domain(css, DOMAIN_CGROUP, &id);  // not the machine, which contains every process
}

static __always_inline void fill_invoker(struct oom_event *e) {
  u64 self = bpf_get_current_pid_tgid();
  e->invoker_tgid = self >> 32;
  e->invoker_tid = self;
  bpf_get_current_comm(e->invoker_comm, sizeof(e->invoker_comm));
  e->invoker_cgroup = cgroup_id_of(task_css(bpf_get_current_task()));
}

// The limit that was hit: the first level, from the charging task's cgroup upwards, with headroom for fewer than `pages`.
static __always_inline void find_limit(struct oom_event *e, u64 pages) {
  u64 css = task_css(bpf_get_current_task());
  NO_UNROLL
  for (int i = 0; i < 64 && css; i++) {
    COUNTS_UP(i);
    u64 memcg = css - OFF_MEMCG_CSS, usage = 0, max = 0;
    READ(usage, memcg, OFF_MEMCG_MEMORY + OFF_COUNTER_USAGE);
    READ(max, memcg, OFF_MEMCG_MEMORY + OFF_COUNTER_MAX);
    u64 parent = css_parent(css);
    if (parent && usage + pages > max) {
      e->oom_cgroup = cgroup_id_of(css);
      e->oom_usage = usage;
      e->oom_limit = max;
      break;
    }
#ifdef OFF_MEMCG_MEMSW
    READ(usage, memcg, OFF_MEMCG_MEMSW + OFF_COUNTER_USAGE);
    READ(max, memcg, OFF_MEMCG_MEMSW + OFF_COUNTER_MAX);
    if (parent && usage + pages > max) {
      e->oom_cgroup = cgroup_id_of(css);
      e->oom_usage = usage;
      e->oom_limit = max;
      e->flags |= OOM_MEMSW;
      break;
    }
#endif
    css = parent;
  }
}

// The page cache of the cgroup that is at its limit, by the sums of this moment.
static __always_inline void note_cache(struct oom_event *e) {
  u64 id = e->oom_cgroup ? e->oom_cgroup : 1;  // 1: the root of the hierarchy, which stands for the machine
  u32 *index = domain_of.lookup(&id);
  e->oom_inactive = e->oom_active = -1;
  if (!index) return;
  u32 at = *index;
  struct domain *d = domains.lookup(&at);
  if (!d || !d->synced) return;
  e->oom_inactive = d->inactive_file;
  e->oom_active = d->active_file;
}

// Whether a SIGKILL is within the budget of its sender.
static __always_inline int within_budget(struct oom_event *e) {
  u32 from = e->si_code == 128 ? 0 : pod_of(bpf_get_current_task());
  struct domain *d = domain_at(from ? from : e->domain);
  // The kernel killed a process outside all watched cgroups: only a mark by the OOM killer reports it. Users end pid namespaces by the thousand.
  if (!d) return 0;
  return afford(&d->kill_due, &d->kill_over, e->ts_ns, KILL_NS, from ? KILL_BURST : KILL_BURST_FROM_OUTSIDE);
}

// signal_generate fires 2-3 us before mark_victim when the OOM killer kills; before a mark without a kill (a task that was
// already exiting) it does not. SIGKILLs that other processes send to watched pods are reported too: they only look like OOM kills.
//
// A process is killed once: a signal that the kernel drops (to a zombie, to a process that is dying already) is no kill. One process sent
// 28,000 such signals a second to its dead child, more records than the hot process can read. A process that the kernel itself kills (si_code
// 128) is reported at its first signal, delivered or not, and gets its entry beyond the budget too: a mark by the OOM killer may follow, and
// marks have no budget.
int on_signal_generate(struct bpf_raw_tracepoint_args *ctx) {
  if ((int)ctx->args[0] != 9) return 0;
  u64 info = ctx->args[1], task = ctx->args[2];
  s32 code = 0;
  if (info == 1) code = 128;  // SEND_SIG_PRIV: the kernel itself
  else if (info) READ(code, info, OFF_SIGINFO_CODE);
  int delivered = (int)ctx->args[4] == SIGNAL_DELIVERED;
  if (!delivered && code != 128) return 0;
  u32 tgid = 0;
  READ(tgid, task, OFF_TASK_TGID);
  struct killed *known = killed.lookup(&tgid);
  if (known && known->si_code == code && !(delivered && known->gone)) return 0;  // gone and yet killed: its pid is used again
  struct oom_event e = {};
  e.kind = OOM_KILL;
  e.si_code = code;
  fill_victim(&e, task);
  if (!e.domain && code != 128) return 0;
  fill_invoker(&e);
  e.ts_ns = bpf_ktime_get_ns();
  int reported = within_budget(&e);
  if (!reported && code != 128) return 0;
  struct killed k = {e.ts_ns, e.victim_cgroup, e.invoker_tgid, code, e.domain, reported ? 0 : UNREPORTED};
  killed.update(&tgid, &k);
  if (reported) send_kill(&e, COUNT_EMIT_KILL);
  return 0;
}

// Here current is the task that failed to allocate, not the victim.
int on_mark_victim(struct bpf_raw_tracepoint_args *ctx) {
  struct oom_event e = {};
  e.kind = OOM_MARK;
#if MARK_VICTIM_HAS_TASK
  u64 task = ctx->args[0], mm = 0;
  e.uid = ctx->args[1];
  fill_victim(&e, task);
  READ(mm, task, OFF_TASK_MM);
  if (mm) {
    READ(e.total_vm, mm, OFF_MM_TOTAL_VM);
    READ(e.pgtables, mm, OFF_MM_PGTABLES);
    READ(e.file_rss, mm, OFF_MM_RSS_STAT + RSS_STRIDE * MM_FILEPAGES_);
    READ(e.anon_rss, mm, OFF_MM_RSS_STAT + RSS_STRIDE * MM_ANONPAGES_);
    READ(e.swap, mm, OFF_MM_RSS_STAT + RSS_STRIDE * MM_SWAPENTS_);
    READ(e.shmem_rss, mm, OFF_MM_RSS_STAT + RSS_STRIDE * MM_SHMEMPAGES_);
  }
#else
  e.victim_tid = e.victim_tgid = ctx->args[0];
#endif
  fill_invoker(&e);
  e.ts_ns = bpf_ktime_get_ns();

  u32 tgid = e.victim_tgid;
  struct killed *k = killed.lookup(&tgid);
#if !MARK_VICTIM_HAS_TASK
  if (k) {  // from the signal 2-3 us ago
    e.victim_cgroup = k->cgroup;
    e.domain = k->domain;
  }
#endif
  if (k && k->gone == UNREPORTED) k->gone = 0;  // its end is reported
  // After a SIGKILL that the OOM killer did not send, it was exiting anyway, also if the task that allocates now had sent it.
  if (!k || k->si_code != 128 || k->sender != e.invoker_tgid || e.ts_ns - k->ts_ns > 100000000ULL) e.flags |= OOM_EXITING;

  find_limit(&e, 8);  // the smallest order that can OOM
  // By now a limit may have headroom again: the kernel has uncharged what each CPU had charged ahead (64 pages) while it searched for memory.
  if (!e.oom_cgroup) find_limit(&e, 512);
  note_cache(&e);
  count(ooms.ringbuf_output(&e, sizeof(e), 0) ? COUNT_LOST_OOM : COUNT_EMIT_OOM);
  return 0;
}

// Bytes of page tables of a process that exits unkilled, where the kernel frees them late: until then no pod needs to die for them. 0 where
// another process uses its memory too (a child of vfork). Until 6.14 it has none left here, and is not reported.
#define TABLES_REPORTED (1 << 20)
static __always_inline u64 late_tables(u64 task) {
  u64 mm = 0, tables = 0;
  u32 users = 0;
  READ(mm, task, OFF_TASK_MM);
  if (!mm) return 0;
  READ(tables, mm, OFF_MM_PGTABLES);
  READ(users, mm, OFF_MM_USERS);
  if (tables < TABLES_REPORTED || users != 1) return 0;
  struct domain *d = domain_at(pod_of(task));
  // Not the budget of kills: a pod could use that up, and other pods would die for these tables.
  return d && afford(&d->exit_due, &d->exit_over, bpf_ktime_get_ns(), KILL_NS, KILL_BURST) ? tables : 0;
}

// The last thread of a process exits: of a killed process, or of one with many page tables. Since 6.17 this tracepoint fires before the
// kernel frees its memory, until 6.14 after.
int on_process_exit(struct bpf_raw_tracepoint_args *ctx) {
  u64 task = ctx->args[0], signal = 0, tables = 0;
  u32 tgid = bpf_get_current_pid_tgid() >> 32;
  s32 live = 0;
  READ(signal, task, OFF_TASK_SIGNAL);
  READ(live, signal, OFF_SIGNAL_LIVE);
  if (live) return 0;
  struct killed *k = killed.lookup(&tgid);
  if (k && k->gone) return 0;
  if (!k && !(tables = late_tables(task))) return 0;
  struct oom_event e = {};
  e.kind = OOM_EXIT;
  e.ts_ns = bpf_ktime_get_ns();
  fill_victim(&e, task);
  if (k) {
    e.si_code = k->si_code;
    e.domain = k->domain;
    k->gone = GONE;  // not deleted: a victim that preempts its killer may exit before the mark
  } else {
    e.flags = OOM_BY_ITSELF;
    e.pgtables = tables;
  }
  send_kill(&e, COUNT_EMIT_EXIT);
  return 0;
}

// A task must reclaim memory before it gets any: the last stage before an OOM. Reported for a cgroup after a second without such a reclaim.
#define RECLAIM_QUIET_NS 1000000000ULL
BPF_TABLE("lru_hash", u64, u64, reclaimed_at, 1024);  // memory cgroup at its limit, 0 for the machine -> last time

static __always_inline void note_reclaim(struct oom_event *e) {
  e->ts_ns = bpf_ktime_get_ns();
  u64 id = e->oom_cgroup, *last = reclaimed_at.lookup(&id);
  if (last) {  // written in place: an update takes locks, and another entry. (If the entry is another cgroup's by now, that one is new as well.)
    u64 before = *last;
    *last = e->ts_ns;
    if ((s64)(e->ts_ns - before) < (s64)RECLAIM_QUIET_NS) return;  // signed: another CPU may have been here a moment later
  } else if (reclaimed_at.insert(&id, &e->ts_ns)) {
    return;  // another CPU has put it there since, and reports it
  }
  struct domain *d = domain_at(pod_of(bpf_get_current_task()));  // by pod: it may have any number of cgroups
  if (d && !afford(&d->reclaim_due, &d->reclaim_over, e->ts_ns, RECLAIM_NS, RECLAIM_BURST)) return;
  e->kind = OOM_RECLAIM;
  fill_invoker(e);
  note_cache(e);
  count(reclaims.ringbuf_output(e, sizeof(*e), 0) ? COUNT_LOST_RECLAIM : COUNT_EMIT_RECLAIM);
}

int on_memcg_reclaim(struct bpf_raw_tracepoint_args *ctx) {
  struct oom_event e = {};
  find_limit(&e, 512);  // the allocation may be a huge page
  if (e.oom_cgroup) note_reclaim(&e);  // else memory.high caused it, or a write to a file of the cgroup
  return 0;
}

int on_direct_reclaim(struct bpf_raw_tracepoint_args *ctx) {
  struct oom_event e = {};
  note_reclaim(&e);
  return 0;
}
