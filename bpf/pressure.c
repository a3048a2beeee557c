// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
// Compares the watched memory cgroups with their ceilings as memory moves, in the kernel. stats.c (tracepoints on memory cgroup statistics) or
// charges.c (the charge itself) calls evaluate(); monitor/kernel/charging.py chooses the one that is compiled.

// Crossings and the signals sent at them have a ring of their own, so that no other record delays them.
BPF_RINGBUF_OUTPUT(events, 64);  // pages: 256 KiB, about 2,900 records
BPF_RINGBUF_OUTPUT(steps, 256);  // 1 MiB, about 11,000

// Budget of re-rank steps of one domain: growth of 5 GiB/s, the most that was measured on 2 CPUs, is below it.
#define STEP_NS 200000ULL
#define STEP_BURST 256

// One program may interrupt another on the same CPU: interrupts are on while pages are mapped, and an interrupt may free slab, or charge a socket,
// or the very memory for an entry of `leaves`. The kernel skips a program that interrupts itself, and no other. So each program has a gate and a
// scratch of its own.
enum own {
  OWN_LRUVEC_STAT, OWN_MEMCG_STAT,             // stats.c
  OWN_CHARGE = OWN_LRUVEC_STAT, OWN_UNCHARGE,  // charges.c: one of the two is compiled
  OWN_SWEEP, OWN_MAX
};

struct gate {
  u64 memcg;
  u64 usage;
  u64 moved;    // pages of statistics that moved on this CPU since it last passed
  u64 checked;  // `moved` when usage was last read
  u64 file;     // some of them were file pages: the exact LRU sizes are worth reading
  // Between the caller of evaluate() and compare(). In memory, because the verifier would follow every path once for each value of an argument.
  u64 rising;   // this event adds memory: it may cross a ceiling
  u64 hidden;   // a ceiling seems crossed, but not by this event
};
BPF_PERCPU_ARRAY(gates, struct gate, OWN_SWEEP);  // a sweep compares nothing

// What one memory cgroup contributed to the sums of its ancestors; without an entry nothing, and a cgroup that cannot get one is not counted until
// it can. The map never drops an entry by itself, as an LRU hash of 16,384 did: the next charge would count that cgroup's page cache once more, and
// the working set would seem that much smaller. After a sweep user space deletes the entries that it did not visit: those cgroups are gone.
struct leaf {
  s64 inactive;
  s64 active;
  u64 sweep;   // the last that counted it
};
BPF_F_TABLE("hash", u64, struct leaf, leaves, MAX_LEAVES, LEAVES_FLAGS);

struct sweep {
  u64 number;   // of the running sweep; 0: none
  u64 css;      // where the next call continues
  u64 id;       // its cgroup id, to notice that it was freed in between
  u64 up;       // it was visited, and so were its children: on the way up
  u64 root;
  u64 lost;     // number of the last sweep that counted a cgroup for which there was no entry
};
BPF_ARRAY(sweeps, struct sweep, 1);

BPF_F_TABLE("array", u32, struct victim, victims, 1, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct eviction, evictions, 1, BPF_F_MMAPABLE);

// Test-and-set without atomics of a newer instruction set: inserting a key that exists fails, so exactly one CPU wins. After any other error no CPU
// has: a lock of the map was not available (-EBUSY, since Linux 6.15 -EDEADLK and -ETIMEDOUT). The map is never full: few cgroups have ceilings.
#define IS_THERE (-17)  // -EEXIST
BPF_HASH(crossings, u64, u64, MAX_DOMAINS * 2);  // domain << 8 | ceiling -> time of the crossing
BPF_TABLE("lru_hash", u64, u64, firings, 1024);  // generation -> time

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

// User space decided ahead; here the victim itself pulls the trigger, inside its own charge.
static __always_inline void pull(struct domain *d, u32 index) {
  u32 zero = 0;
  struct victim *v = victims.lookup(&zero);
  if (!v) return;
  u64 generation = v->armed;
  if (!generation) return;
  if (!is_below(task_css(bpf_get_current_task()), v->pod_cgroup_id)) return;
  u64 now = bpf_ktime_get_ns();
  if (firings.insert(&generation, &now)) return;  // another CPU was first, or it was fired before
  if (v->armed != generation) return;             // user space disarmed it meanwhile, or armed another
  v->fired = generation;  // first: user space arms again when it finds neither
  v->armed = 0;
  struct event e = {};
  e.generation = generation;
  e.result = bpf_send_signal(9);
  emit(&e, d, index, EVENT_SIGNAL, COUNT_EMIT_SIGNAL);
}

// The working set has moved to the other side of one ceiling. The map of crossings decides which CPU reports it, and when again.
static __always_inline void change(struct domain *d, u32 index, u32 i, int over, u64 now) {
  u64 bit = 1ULL << i, key = (u64)index << 8 | i, *since = crossings.lookup(&key);
  if (since && (s64)(now - *since) < (s64)d->rearm_ns) {  // signed: another CPU may have been here a moment later
    // A working set that trembles at the line must not flood the ring. `dipped` remembers a dip, so that being above counts as a
    // crossing again after the quiet time.
    if (!over) d->dipped |= bit;
    return;
  }
  if (since && crossings.delete(&key)) return;  // another CPU handles it, or the next charge
  d->dipped &= ~bit;
  if (!over) {
    d->crossed &= ~bit;
    return;
  }
  int failed = crossings.insert(&key, &now);
  if (failed && failed != IS_THERE) return;  // not crossed yet: the next charge tries again
  if (!failed) {
    struct event e = {};
    e.threshold = i;
    if (emit(&e, d, index, EVENT_CROSS, COUNT_EMIT_CROSS)) {
      crossings.delete(&key);  // the ring is full: the next charge tries again
      return;
    }
  }
  d->crossed |= bit;
}

// What a domain's thresholds compare. FORMULAS is 0 where all of them are the kubelet's (monitor/kernel/loader.py): then the other formula is not
// compiled, and these programs are, to the instruction, the same as without it.
static __always_inline s64 used(struct domain *d) {
#if FORMULAS
  s64 cache = d->inactive_file;
  if (d->flags & DOMAIN_RECLAIMABLE) cache += d->active_file;
  return (s64)d->usage - cache;
#else
  return (s64)d->usage - d->inactive_file;
#endif
}

// Compare one domain with its ceilings; report what changed. Only an event that adds memory can cross: pages being freed leave the LRU list, and
// the LRU sizes, a moment before the kernel uncharges them, and in between freed page cache looks like working set.
static __always_inline void compare(struct domain *d, u32 index, struct gate *g) {
  s64 ws = used(d);
  if (ws < 0) ws = 0;
  u64 now = bpf_ktime_get_ns();
  d->seen_ns = now;

  if (ws > d->pull_above && g->rising) pull(d, index);

  u64 crossed = d->crossed;
  if (ws > d->lowest || crossed) {
    // One change at a time: a second ceiling crossed by the same charge is reported at the next one. (Handling all of them here multiplies the
    // paths that the verifier follows; and user space compares with all of them as soon as it reads the first record.)
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
        if (afford(&d->step_due, &d->step_over, now, STEP_NS, STEP_BURST)) {  // else the next charge reports both
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
BPF_PERCPU_ARRAY(scratches, struct scratch, OWN_MAX);

// Count the LRU lists of the cgroup that is charged or swept. A sweep may visit a cgroup twice (it begins again when the cgroup where it paused is
// gone) and counts nothing twice. It counts a cgroup that is new while it runs, whether that lies ahead or behind.
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
  if (sweeping) {  // the sweep's own sums are right, with or without an entry
    if (failed) c->more_inactive = c->more_active = 0;
  } else if (failed || s->lost == s->number) {  // the sweep may have counted it: count its changes from here on
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

#if FORMULAS
// A cgroup's entry for the other formula, where it has one.
static __always_inline void add_other(struct scratch *c, u32 first, u64 cgroup) {
  struct domain *d = domains.lookup(&first);
  u32 other = d ? d->flags >> RECLAIMABLE_SHIFT & 0xffff : 0;  // index + 1
  u64 n = c->n;
  if (!other || n >= MAX_NESTED) return;
  c->found[n].cgroup = cgroup;
  c->found[n].index = other - 1;
  c->n = n + 1;
}
#endif

// Bring every watched ancestor of memcg up to date. `own` is which program this is, `pending_` what this very event is about to add to its LRU
// lists (the tracepoint fires before the sizes change), `charging` what it is about to add to its usage and to that of every ancestor.
static __always_inline void evaluate(u32 own, u64 memcg, int file, struct gate *comparing, u64 sweeping, s64 pending_inactive,
                                     s64 pending_active, u64 charging) {
  struct scratch *c = scratches.lookup(&own);
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
#if FORMULAS
      // The number by way of memory: the verifier would follow each value of it through all further levels.
      c->n = n;
      add_other(c, *index, at);
      n = c->n;
#endif
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
