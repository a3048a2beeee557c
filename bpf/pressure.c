// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
// Memory moving: the watched memory cgroups against their ceilings, compared here, in the kernel. What calls evaluate() is in stats.c
// (tracepoints on memory cgroup statistics) or charges.c (the charge itself), of which one is compiled: monitor/kernel/charging.py chooses.

// Crossings and what was done about them have a ring of their own: nobody reads through anything else to get at them.
BPF_RINGBUF_OUTPUT(events, 64);  // pages: 256 KiB, about 2,900 records
BPF_RINGBUF_OUTPUT(steps, 256);  // 1 MiB, about 11,000

// Steps of one domain: growth of 5 GiB/s, the most that 2 CPUs were seen to take, is below that.
#define STEP_NS 200000ULL
#define STEP_BURST 256

struct gate {
  u64 memcg;
  u64 usage;
  u64 moved;    // pages of statistics that moved on this CPU since it last passed
  u64 checked;  // `moved` when usage was last read
  u64 file;     // some of them were file pages: the exact LRU sizes are worth reading
  // Between whoever evaluates and compare(). In memory, because the verifier would follow every path once for each value of an argument.
  u64 rising;   // this event adds memory: it may cross a ceiling
  u64 hidden;   // a ceiling seems crossed, but not by this event
};
BPF_PERCPU_ARRAY(gates, struct gate, 2);  // the second is for uncharges, which may interrupt a charge (charges.c)

// What one memory cgroup contributed to the sums of its ancestors. None: nothing, so whoever has no entry and cannot get one is not counted until
// it can. Never one that falls out by itself (an LRU hash of 16,384 was): its page cache would be counted once more at its next charge, and the
// working set would seem that much smaller. User space takes out the dead after a sweep, which are those it has not been to.
struct leaf {
  s64 inactive;
  s64 active;
  u64 sweep;   // the last that counted it
};
BPF_F_TABLE("hash", u64, struct leaf, leaves, MAX_LEAVES, LEAVES_FLAGS);

struct sweep {
  u64 number;   // of the running sweep; 0: none
  u64 css;      // where the next call goes on
  u64 id;       // its cgroup id, to notice that it was freed in between
  u64 up;       // it was visited, and so were its children: on the way up
  u64 root;
  u64 lost;     // number of the last sweep that counted a cgroup for which there was no entry
};
BPF_ARRAY(sweeps, struct sweep, 1);

BPF_F_TABLE("array", u32, struct victim, victims, 1, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct eviction, evictions, 1, BPF_F_MMAPABLE);

// Test-and-set without atomics of a newer instruction set: inserting a key that exists fails, so exactly one CPU wins.
BPF_HASH(crossings, u64, u64, MAX_DOMAINS * 2);  // domain << 8 | ceiling -> time of the crossing
BPF_TABLE("lru_hash", u64, u64, firings, 1024);  // generation -> time

#define NR_ZONES_ (LRU_ZONE_SIZES / NR_LRU_LISTS)

#ifdef NR_GENERATIONS
// The multi-gen LRU keeps file pages in generations, two of which are active: the youngest and the one before it (lru_gen_is_active()). Single
// sizes may be negative for a moment. Returns whether new pages go there: the switch may be turned at run time, and pages move one by one.
static __always_inline int read_generations(u64 info, s64 *inactive, s64 *active) {
  s64 size[NR_ZONES_];
  u64 youngest = 0;
  u8 enabled = 0;
  READ(youngest, info, OFF_PER_NODE_GEN_MAX_SEQ);
  READ(enabled, info, OFF_PER_NODE_GEN_ENABLED);
#pragma unroll
  for (int gen = 0; gen < NR_GENERATIONS; gen++) {
    s64 sum = 0;
    if (READ(size, info, OFF_PER_NODE_GEN_PAGES + 8 * NR_ZONES_ * (2 * gen + 1))) continue;  // [gen][1]: file
#pragma unroll
    for (int zone = 0; zone < NR_ZONES_; zone++) sum += size[zone];
    // Its age is 0, 1 (active), 2 or 3. By masks, because the verifier would follow both sides of a branch for each generation.
    s64 old = -(s64)(((youngest - gen) & (NR_GENERATIONS - 1)) > 1);
    *inactive += sum & old;
    *active += sum & ~old;
  }
  return enabled;
}
#else
static __always_inline int read_generations(u64 info, s64 *inactive, s64 *active) { return 0; }
#endif

// Exact, synchronous under lru_lock, of this cgroup alone; memory.stat may be 2 s and 64 x CPUs pages behind. Returns whether the multi-gen LRU
// is on: its sizes change before the tracepoint fires, those of the lists after.
static __always_inline int read_lru(u64 memcg, s64 *inactive, s64 *active) {
  u64 size[LRU_ZONE_SIZES];
  s64 in = 0, ac = 0;
  int generations = 0;
  NO_UNROLL
  for (int node = 0; node < NR_NODES; node++) {
    u64 info = 0;
    READ(info, memcg, OFF_MEMCG_NODEINFO + 8 * node);
    if (!info || READ(size, info, OFF_PER_NODE_LRU_ZONE_SIZE)) continue;
#pragma unroll
    for (int zone = 0; zone < NR_ZONES_; zone++) {
      in += size[zone * NR_LRU_LISTS + LRU_INACTIVE_FILE];
      ac += size[zone * NR_LRU_LISTS + LRU_ACTIVE_FILE];
    }
    generations |= read_generations(info, &in, &ac);
  }
  *inactive = in;
  *active = ac;
  return generations;
}

// The whole machine, from the nodes' own counters: anon + file is what the kernel shows as usage of the root cgroup (v1), and what
// the kubelet adds up itself (v2). Per-CPU remainders (at most 125 pages a CPU and counter) are folded in every second.
static __always_inline void read_machine(u64 memcg, struct domain *d) {
  s64 usage = 0, inactive = 0, active = 0, nodes = 0;
  NO_UNROLL
  for (int node = 0; node < NR_NODES; node++) {
    u64 info = 0, pgdat = 0;
    s64 v = 0;
    READ(info, memcg, OFF_MEMCG_NODEINFO + 8 * node);
    READ(pgdat, info, OFF_PER_NODE_PGDAT);
    if (!pgdat) continue;
    nodes++;
    READ(v, pgdat, OFF_PGDAT_VM_STAT + 8 * NR_ANON_MAPPED_); usage += v;
    READ(v, pgdat, OFF_PGDAT_VM_STAT + 8 * NR_FILE_PAGES_); usage += v;
    READ(v, pgdat, OFF_PGDAT_VM_STAT + 8 * NR_INACTIVE_FILE_); inactive += v;
    READ(v, pgdat, OFF_PGDAT_VM_STAT + 8 * NR_ACTIVE_FILE_); active += v;
  }
  if (!nodes) return;  // nothing could be read: the old numbers are better than none
  d->usage = usage;
  d->inactive_file = inactive;
  d->active_file = active;
}

static __always_inline void fill_event(struct event *e, struct domain *d, u32 index, u32 kind) {
  e->ts_ns = bpf_ktime_get_ns();
  e->cgroup_id = d->cgroup_id;
  e->usage = d->usage;
  e->inactive_file = d->inactive_file;
  e->active_file = d->active_file;
  e->kind = kind;
  e->domain = index;
  e->tgid = bpf_get_current_pid_tgid() >> 32;
  e->cpu = bpf_get_smp_processor_id();
}

static __always_inline int emit(struct event *e, struct domain *d, u32 index, u32 kind, u32 emitted) {
  fill_event(e, d, index, kind);
  int lost = events.ringbuf_output(e, sizeof(*e), 0) != 0;
  count(emitted + lost);
  return lost;
}

// The decision was taken ahead in user space; here only the trigger is pulled, by the victim itself, inside its own charge.
static __always_inline void pull(struct domain *d, u32 index) {
  u32 zero = 0;
  struct victim *v = victims.lookup(&zero);
  if (!v) return;
  u64 generation = v->armed;
  if (!generation) return;
  if (!is_below(task_css(bpf_get_current_task()), v->pod_cgroup_id)) return;
  u64 now = bpf_ktime_get_ns();
  if (firings.insert(&generation, &now)) return;  // another CPU was first, or it was fired before
  if (v->armed != generation) return;             // user space changed its mind while we looked
  v->fired = generation;  // first: user space arms again when it finds neither
  v->armed = 0;
  struct event e = {};
  e.generation = generation;
  e.result = bpf_send_signal(9);
  emit(&e, d, index, EVENT_SIGNAL, COUNT_EMIT_SIGNAL);
}

// One ceiling is on the other side of the working set than it was. The map of crossings decides who reports it, and when again.
static __always_inline void change(struct domain *d, u32 index, u32 i, int over, u64 now) {
  u64 bit = 1ULL << i, key = (u64)index << 8 | i, *since = crossings.lookup(&key);
  if (since && (s64)(now - *since) < (s64)d->rearm_ns) {  // signed: another CPU may have been here a moment later
    // A working set that trembles at the line may not flood the ring. A dip is remembered, so that being above counts as a
    // crossing again once the quiet time is over.
    if (!over) d->dipped |= bit;
    return;
  }
  if (since && crossings.delete(&key)) return;  // another CPU sees to it
  d->dipped &= ~bit;
  if (!over) {
    d->crossed &= ~bit;
    return;
  }
  if (crossings.insert(&key, &now) == 0) {
    struct event e = {};
    e.threshold = i;
    if (emit(&e, d, index, EVENT_CROSS, COUNT_EMIT_CROSS)) {
      crossings.delete(&key);  // the ring is full: not crossed yet, the next charge tries again
      return;
    }
  }
  d->crossed |= bit;
}

// Compare one domain with its ceilings; report what changed. Only what adds memory can cross: pages being freed leave the LRU list, and the
// LRU sizes, a moment before they are uncharged, and in between freed page cache looks like working set.
static __always_inline void compare(struct domain *d, u32 index, struct gate *g) {
  s64 ws = (s64)d->usage - d->inactive_file;
  if (ws < 0) ws = 0;
  u64 now = bpf_ktime_get_ns();
  d->seen_ns = now;

  if (ws > d->pull_above && g->rising) pull(d, index);

  u64 crossed = d->crossed;
  if (ws > d->lowest || crossed) {
    // One change at a time: a second ceiling crossed by the same charge is reported at the next one. (Handling all of them here multiplies the
    // paths that the verifier follows; and user space compares with all of them as soon as it hears of the first.)
    u32 i = 0;
    int over = 0;
    u64 stays = crossed & ~d->dipped;
    NO_UNROLL
    for (; i < MAX_THRESHOLDS; i++) {
      over = ws > d->ceiling[i];
      if (over ? !(stays >> i & 1) : crossed >> i & 1) break;
    }
    if (i < MAX_THRESHOLDS) {
      if (over && !g->rising) g->hidden = 1;
      else change(d, index, i, over, now);
    }
  }

  if (d->step) {
    s64 moved = ws - (s64)d->reported;
    if (moved < 0) moved = -moved;
    if ((u64)moved >= d->step) {
      u64 key = (u64)index << 8 | 255;
      if (crossings.insert(&key, &now) == 0) {
        if (afford(&d->step_due, &d->step_over, now, STEP_NS, STEP_BURST)) {  // else the next charge tells of both
          d->reported = ws;
          struct event e = {};
          fill_event(&e, d, index, EVENT_STEP);
          count(steps.ringbuf_output(&e, sizeof(e), 0) ? COUNT_LOST_STEP : COUNT_EMIT_STEP);
        }
        crossings.delete(&key);
      }
    }
  }
}

// What one evaluation knows. In a map rather than on the stack: the verifier takes every value of it as possible, instead of following
// each path that led to one.
struct scratch {
  s64 inactive;       // of the cgroup charged, now
  s64 active;
  s64 more_inactive;  // what changed since it was last counted
  s64 more_active;
  s64 shadow_inactive;  // the same for the sums of the sweep that has been here
  s64 shadow_active;
  u64 shadow;         // that sweep
  u64 n;              // watched cgroups at or above it
  u64 deepest;        // level of the last of them
  struct { u64 cgroup; u64 index; } found[MAX_NESTED];
};
BPF_PERCPU_ARRAY(scratches, struct scratch, 3);  // for charges, and for sweeps and uncharges, which may come in the midst of one

// Count the LRU lists of the cgroup that is charged or swept. A sweep may come by a second time (it goes on somewhere else when the cgroup where it
// paused is gone) and counts nothing twice; a cgroup that is new while a sweep runs is counted by it, whether it lies ahead or behind.
static __always_inline void count_lists(struct scratch *c, u64 memcg, u64 self, u64 sweeping, s64 pending_inactive, s64 pending_active) {
  s64 inactive = 0, active = 0;
  if (!read_lru(memcg, &inactive, &active)) {
    inactive += pending_inactive;
    active += pending_active;
  }
  c->inactive = c->more_inactive = c->shadow_inactive = inactive;
  c->active = c->more_active = c->shadow_active = active;
  c->shadow = sweeping;
  struct leaf *old = leaves.lookup(&self);
  if (old) {
    c->more_inactive = inactive - old->inactive;
    c->more_active = active - old->active;
    if (!sweeping || old->sweep == sweeping) {
      c->shadow = old->sweep;
      c->shadow_inactive = c->more_inactive;
      c->shadow_active = c->more_active;
    } else {
      old->sweep = sweeping;
    }
    old->inactive = inactive;
    old->active = active;
    return;
  }
  if (!(inactive | active)) return;
  u32 zero = 0;
  struct sweep *s = sweeps.lookup(&zero);
  if (!s) return;
  struct leaf now = {inactive, active, s->number};
  int failed = leaves.insert(&self, &now) != 0;
  if (failed) {
    count(COUNT_UNCOUNTED);
    if (sweeping) s->lost = sweeping;
  }
  c->shadow = s->number;
  if (sweeping) {  // its own sums are right, entry or not
    if (failed) c->more_inactive = c->more_active = 0;
  } else if (failed || s->lost == s->number) {  // the sweep may have counted it: from here on
    c->more_inactive = c->more_active = 0;
    c->shadow_inactive = c->shadow_active = 0;
  }
}

static __always_inline void add_lists(struct scratch *c, struct domain *d) {
  lock_xadd(&d->inactive_file, c->more_inactive);
  lock_xadd(&d->active_file, c->more_active);
  if (c->shadow == d->shadow_sweep) {
    lock_xadd(&d->shadow_inactive, c->shadow_inactive);
    lock_xadd(&d->shadow_active, c->shadow_active);
  }
}

// The css of a watched cgroup, as it was when its memory cgroup was charged or swept itself; 0 if it is another's by now, or freed.
static __always_inline u64 known_css(struct domain *d) {
  u64 css = d->css;
  return css && d->cgroup_id && cgroup_id_of(css) == d->cgroup_id ? css : 0;
}

// Bring every watched ancestor of memcg up to date. `pending_` is what this very event is about to add to its LRU lists (the tracepoint
// fires before the sizes change), `charging` what it is about to add to its usage and to that of every ancestor.
static __always_inline void evaluate(u64 memcg, int file, struct gate *comparing, u64 sweeping, s64 pending_inactive,
                                     s64 pending_active, u64 charging) {
  u32 which = sweeping ? 1 : comparing && !comparing->rising ? 2 : 0;
  struct scratch *c = scratches.lookup(&which);
  if (!c) return;
  u64 cgroup = cgroup_of(memcg + OFF_MEMCG_CSS), n = 0;
  int level = level_of(cgroup);
  NO_UNROLL
  for (int i = 0; i <= MAX_LEVEL; i++) {
    COUNTS_UP(i);
    if (i > level) break;
    u64 id = 0, at = ancestor(cgroup, i, level, &id);
    u32 *index = domain_of.lookup(&id);
    if (index && n < MAX_NESTED) {
      c->found[n].cgroup = at;
      c->found[n].index = *index;
      c->deepest = i;
      n++;
    }
  }
  if (!n) return;
  c->n = n;
  if (!c->deepest) file = 0;  // only the machine, which counts for itself
  if (file) count_lists(c, memcg, id_of(cgroup), sweeping, pending_inactive, pending_active);

  NO_UNROLL
  for (int i = 0; i < MAX_NESTED; i++) {
    COUNTS_UP(i);
    if (i >= c->n) break;
    u32 index = c->found[i].index;
    u64 at = c->found[i].cgroup, css = 0, usage = 0;
    struct domain *d = domains.lookup(&index);
    if (!d || !d->cgroup_id) continue;
    if (d->flags & DOMAIN_MACHINE) {
      read_machine(memcg, d);
    } else {
      if (file) add_lists(c, d);
      if (at) READ(css, at, OFF_CGROUP_SUBSYS + 8 * MEMORY_CGRP_ID);
      else css = known_css(d);
      if (!css) continue;  // not swept yet
      READ(usage, css - OFF_MEMCG_CSS, OFF_MEMCG_MEMORY + OFF_COUNTER_USAGE);
      d->usage = usage + charging;
      d->css = css;
    }
    if (comparing && d->synced) compare(d, index, comparing);
  }
}

// Before a sweep: args[0] = first domain, args[1] = its number, args[2] = end, args[3] = 1 if the sums kept so far are not to be compared with until
// it is over (nobody kept them while the programs were detached). A domain that is added later has no part in it. Returns the next domain, 0 at the end.
int begin(struct bpf_raw_tracepoint_args *ctx) {
  u32 index = ctx->args[0], end = ctx->args[2];
  NO_UNROLL
  for (int n = 0; n < COMMIT_CHUNK; n++) {
    COUNTS_UP(n);
    if (index >= end) return 0;
    struct domain *d = domains.lookup(&index);
    if (!d) return 0;
    if (ctx->args[3] && !(d->flags & DOMAIN_MACHINE)) d->synced = 0;
    d->shadow_inactive = 0;
    d->shadow_active = 0;
    d->shadow_sweep = ctx->args[1];
    index++;
  }
  return index;
}

static __always_inline u64 root_css(void) {
  u64 root = 0, css = 0;
  READ(root, cgroup_of(task_css(bpf_get_current_task())), OFF_CGROUP_ROOT);
  READ(css, root, OFF_CGROUP_ROOT_CGRP + OFF_CGROUP_SUBSYS + 8 * MEMORY_CGRP_ID);
  return css;
}

// One stretch of a walk over all memory cgroups, also the dying ones that still hold page cache. Run by user space (BPF_PROG_RUN),
// args[0] = sweep number, args[1] = 1 to begin. Returns 0 when there is more to do, 1 at the end, 2 if where it paused is gone: begin again,
// with the same number.
int sweep(struct bpf_raw_tracepoint_args *ctx) {
  u32 zero = 0;
  struct sweep *s = sweeps.lookup(&zero);
  if (!s) return 1;
  if (ctx->args[1]) {
    s->root = s->css = root_css();
    s->up = 0;
    s->number = ctx->args[0];
  } else if (!s->css || cgroup_id_of(s->css) != s->id) {
    count(COUNT_SWEEP_RESTARTED);
    return 2;
  }

  NO_UNROLL
  for (int n = 0; n < SWEEP_CHUNK; n++) {
    u64 css = s->css, at = 0;
    if (!s->up) {
      evaluate(css - OFF_MEMCG_CSS, 1, 0, s->number, 0, 0, 0);
      count(COUNT_SWEPT);
      READ(at, css, OFF_CSS_CHILDREN);
      if (at && at != css + OFF_CSS_CHILDREN) {
        s->css = at - OFF_CSS_SIBLING;  // pre-order: the first child
        continue;
      }
    }
    // else the next sibling, or one level up; a turn each, because the tree may be of any depth
    if (css == s->root) {
      s->css = 0;
      return 1;
    }
    u64 parent = css_parent(css);
    READ(at, css, OFF_CSS_SIBLING);
    if (!parent || !at) {
      count(COUNT_SWEEP_RESTARTED);
      return 2;  // it was freed under our feet
    }
    s->up = at == parent + OFF_CSS_CHILDREN;
    s->css = s->up ? parent : at - OFF_CSS_SIBLING;
  }
  s->id = cgroup_id_of(s->css);
  return 0;
}

// Take the swept sums over: args[0] = first domain, args[1] = sweep number. Adding the difference (rather than storing the sum) keeps
// every change that happened since, because changes go to both. Returns the next domain, or 0 when args[2] (end) is reached.
//
// A domain in which no memory cgroup was found, its own neither, stays unknown: it lies deeper than these programs look, or is gone.
int commit(struct bpf_raw_tracepoint_args *ctx) {
  u32 index = ctx->args[0], end = ctx->args[2];
  NO_UNROLL
  for (int n = 0; n < COMMIT_CHUNK; n++) {
    COUNTS_UP(n);
    if (index >= end) return 0;
    struct domain *d = domains.lookup(&index);
    if (!d) return 0;
    if (d->cgroup_id && d->shadow_sweep == ctx->args[1] && (d->css || (d->flags & DOMAIN_MACHINE))) {
      if (!(d->flags & DOMAIN_MACHINE)) {
        s64 fix_inactive = d->shadow_inactive - d->inactive_file;
        s64 fix_active = d->shadow_active - d->active_file;
        if (fix_inactive) lock_xadd(&d->inactive_file, fix_inactive);
        if (fix_active) lock_xadd(&d->active_file, fix_active);
      }
      if (!d->synced) {
        s64 ws = (s64)d->usage - d->inactive_file;
        d->reported = ws < 0 ? 0 : ws;
      }
      d->synced = ctx->args[1];
    }
    index++;
  }
  return index;
}

// The machine's own counters, anew, in the entry args[0].
int touch(struct bpf_raw_tracepoint_args *ctx) {
  u32 index = ctx->args[0];
  struct domain *d = domains.lookup(&index);
  if (d && d->flags & DOMAIN_MACHINE) read_machine(root_css() - OFF_MEMCG_CSS, d);
  return 0;
}

// Read usage anew from the page_counters: args[0] = first domain, args[1] = end. What is uncharged last, in one batch, when a process
// frees a lot, is followed by no event. Returns the next domain, or 0 at the end.
int reread(struct bpf_raw_tracepoint_args *ctx) {
  u32 index = ctx->args[0], end = ctx->args[1];
  NO_UNROLL
  for (int n = 0; n < COMMIT_CHUNK; n++) {
    COUNTS_UP(n);
    if (index >= end) return 0;
    struct domain *d = domains.lookup(&index);
    if (!d) return 0;
    u64 css = known_css(d), usage = 0;
    if (css) {
      READ(usage, css - OFF_MEMCG_CSS, OFF_MEMCG_MEMORY + OFF_COUNTER_USAGE);
      d->usage = usage;
    }
    index++;
  }
  return index;
}
