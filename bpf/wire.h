// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
// What BPF and user space exchange. monitor/kernel/wire.py and domains.py decode the same bytes; a test compares both.
// Only fixed-width members in falling order of size, so that no compiler ever pads.

#define MAX_DOMAINS 4096   // node + kubepods + pods + containers: 110 pods with 2 containers need 332
#define MAX_THRESHOLDS 4   // per domain; the kubelet has at most a hard and a soft one per signal, and one signal per domain
#define MAX_LEVEL 12       // levels below the root where a watched cgroup may be: kubepods/burstable/pod/container is 4.
                           // What is charged may be any number of levels below that.
#if FORMULAS
#define MAX_NESTED 8       // the node and kubepods are there once for each formula that has thresholds
#else
#define MAX_NESTED 6       // watched cgroups one inside the other: node, kubepods, pod, container
#endif
#define NO_CEILING 0x7fffffffffffffffLL

enum domain_flag {
  DOMAIN_MACHINE = 1,  // counters of the whole machine (node vm_stat) instead of a page_counter
  DOMAIN_POD = 2,      // processes that appear here are reported on the procs ring
  DOMAIN_CGROUP = 4,   // counted by its page_counter and the LRU sizes below it: every domain but the machine
  // Of an entry that stands for a cgroup a second time, for thresholds by another formula than the kubelet's (docs/signals.md). It is
  // in no `domain_of`: its first entry's flags have its index + 1, from the bit of the shift below on.
  DOMAIN_RECLAIMABLE = 8,   // active file pages are available as well
};

#define RECLAIMABLE_SHIFT 16

// One watched cgroup. User space writes the first part, BPF the second; both by single aligned 64-bit stores.
// All sizes are in pages: the page_counter's own unit.
struct domain {
  u64 cgroup_id;                 // 0: the slot is free
  u64 flags;
  s64 ceiling[MAX_THRESHOLDS];   // crossed while working set > ceiling, that is while available < threshold
  s64 lowest;                    // the smallest ceiling: one comparison when far away
  s64 pull_above;                // above this the armed victim is signalled inside its own charge
  u64 step;                      // report when the working set moved this far; 0: never
  u64 rearm_ns;                  // a ceiling is not reported again sooner than this after its last crossing
  u64 exit_due, exit_over;       // written by BPF: the last of the budgets below

  u64 usage;
  s64 inactive_file;             // of the whole subtree
  s64 active_file;
  s64 shadow_inactive;           // the sums a sweep builds beside the live ones
  s64 shadow_active;
  u64 reported;                  // working set at the last step record
  u64 crossed;                   // bit per ceiling: now above it
  u64 synced;                    // number of the last sweep that was committed; 0: none, do not compare
  u64 seen_ns;                   // when BPF last evaluated it
  u64 shadow_sweep;              // the sweep that the shadow sums belong to
  u64 dipped;                    // bit per ceiling: was below for a moment, too soon after its crossing to be cleared
  u64 css;                       // its cgroup_subsys_state, good only while its cgroup id is still this one's

  // Records that its processes may cause, each kind by a budget of its own (afford() in memcg.h): when the next one is
  // due at a steady pace, and how many were not reported because they came faster.
  u64 step_due, step_over;
  u64 kill_due, kill_over;
  u64 proc_due, proc_over;
  u64 reclaim_due, reclaim_over;
};

enum event_kind { EVENT_CROSS = 1, EVENT_STEP = 2, EVENT_SIGNAL = 3 };

struct event {
  u64 ts_ns;          // CLOCK_MONOTONIC
  u64 cgroup_id;      // of the domain
  u64 usage;          // pages
  s64 inactive_file;
  s64 active_file;
  u64 generation;     // of the armed victim (EVENT_SIGNAL)
  s64 result;         // of bpf_send_signal (EVENT_SIGNAL)
  u32 kind;
  u32 domain;         // index
  u32 threshold;      // index of the ceiling (EVENT_CROSS)
  u32 tgid;           // of the task that was charging
  u32 cpu;
  u32 reserved;
};

// The next victim, written by user space ahead of need. `armed` is written last and carries the generation.
struct victim {
  u64 armed;          // 0: no pod; else the generation of the fields below
  u64 pod_cgroup_id;  // the signal is sent only if the charging task lives below this cgroup at that moment
  u64 reserved;
  u64 fired;          // the last generation that was fired
};

// The eviction under way, written by the daemon before it signals and read by the next one. The last two are for the programs.
struct eviction {
  u64 state;          // 0: none; 1: SIGTERM sent; 2: killed; 3: no process is left. Written last
  u64 pod_cgroup_id;
  u64 started_ns;
  u64 kill_at_ns;     // the end of its grace
  u64 killed_ns;
  u64 held;           // bytes of its working set before
  u64 reported;       // 1: the decision was reported
  u64 sender;         // pid of the hot process, which need not be woken for a signal that it sends itself
  u64 unheard;        // 1: there are records in `kills` without a wakeup of their reader
};

enum oom_kind { OOM_MARK = 1, OOM_KILL = 2, OOM_EXIT = 3, OOM_RECLAIM = 4 };
enum oom_flag {
  OOM_EXITING = 1,    // marked while already dying: the OOM killer killed nothing
  OOM_MEMSW = 2,      // the limit hit was memory+swap (cgroup v1)
  OOM_BY_ITSELF = 4,  // OOM_EXIT: it was not killed; `pgtables` is what it had
};

struct oom_event {
  u64 ts_ns;
  u64 victim_cgroup;  // memory cgroup of the victim
  u64 invoker_cgroup; // of the task that called the OOM killer, by an allocation (OOM_KILL: of the sender)
  u64 oom_cgroup;     // the cgroup at its limit (OOM_RECLAIM: under reclaim); 0: the machine (or cpuset, mempolicy)
  u64 oom_usage;      // pages, of oom_cgroup
  u64 oom_limit;
  s64 oom_inactive;   // pages of file cache in oom_cgroup where it is a watched domain; -1: not known
  s64 oom_active;
  u64 total_vm;       // pages
  s64 anon_rss;       // pages, from the approximate per-mm counters
  s64 file_rss;
  s64 shmem_rss;
  s64 swap;
  u64 pgtables;       // bytes
  u32 kind;
  u32 flags;
  u32 victim_tgid;
  u32 victim_tid;
  u32 invoker_tgid;
  u32 invoker_tid;
  u32 uid;
  s32 oom_score_adj;
  s32 si_code;        // OOM_KILL: 0 user, 128 kernel
  u32 domain;         // index + 1 of the nearest watched cgroup of the victim; 0: none
  char victim_comm[16];
  char invoker_comm[16];
};

enum proc_kind { PROC_FORK = 1, PROC_EXEC = 2, PROC_ATTACH = 3 };

struct proc_event {
  u64 ts_ns;
  u64 cgroup_id;      // of the nearest watched cgroup
  u32 kind;
  u32 tgid;
  u32 domain;
  u32 reserved;
};

enum count {
  COUNT_EVALUATED,    // passed the gate
  COUNT_EMIT_CROSS, COUNT_LOST_CROSS,
  COUNT_EMIT_STEP, COUNT_LOST_STEP,
  COUNT_EMIT_SIGNAL, COUNT_LOST_SIGNAL,
  COUNT_EMIT_OOM, COUNT_LOST_OOM,
  COUNT_EMIT_KILL, COUNT_LOST_KILL,
  COUNT_EMIT_EXIT, COUNT_LOST_EXIT,
  COUNT_EMIT_PROC, COUNT_LOST_PROC,
  COUNT_EMIT_RECLAIM, COUNT_LOST_RECLAIM,
  COUNT_SWEPT,        // memory cgroups visited by sweeps
  COUNT_SWEEP_RESTARTED,
  COUNT_UNCOUNTED,    // page cache of a memory cgroup that there was no entry for: it counts as working set until a sweep
  COUNT_MAX
};
