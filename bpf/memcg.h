// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
// Reading the kernel's structures. Every OFF_ and NR_ comes from the running kernel's BTF (monitor/kernel/offsets.py):
// struct definitions from header files that do not match the kernel would read garbage without any error.

#define READ(dst, base, off) bpf_probe_read_kernel(&(dst), sizeof(dst), (void *)((u64)(base) + (off)))
#define NO_UNROLL _Pragma("clang loop unroll(disable)")
// In loops that also end at a number read from memory: clang would count down from it to "not 0", and the verifier of 6.1 learns nothing from "not".
#define COUNTS_UP(i) asm volatile("" : "+r"(i))

BPF_PERCPU_ARRAY(counts, u64, COUNT_MAX);

static __always_inline void count(u32 which) {
  u64 *n = counts.lookup(&which);
  if (n) (*n)++;
}

BPF_HASH(domain_of, u64, u32, MAX_DOMAINS);  // memory cgroup id -> index into domains
BPF_F_TABLE("array", u32, struct domain, domains, MAX_DOMAINS, BPF_F_MMAPABLE);

// The inode of the cgroup's directory in the memory hierarchy.
static __always_inline u64 id_of(u64 cgroup) {
  u64 kn = 0, id = 0;
  READ(kn, cgroup, OFF_CGROUP_KN);
  READ(id, kn, OFF_KN_ID);
  return id;
}

static __always_inline u64 cgroup_of(u64 css) {
  u64 cgroup = 0;
  READ(cgroup, css, OFF_CSS_CGROUP);
  return cgroup;
}

static __always_inline u64 cgroup_id_of(u64 css) { return id_of(cgroup_of(css)); }

static __always_inline u64 css_parent(u64 css) {
  u64 parent = 0;
  READ(parent, css, OFF_CSS_PARENT);
  return parent;
}

static __always_inline int level_of(u64 cgroup) {
  int level = 0;
  READ(level, cgroup, OFF_CGROUP_LEVEL);
  return level;
}

// The id of the ancestor at a level (0: the root), from the array that every cgroup has: level 40 costs as much as level 1. Returns the ancestor
// itself; 0 where that is not known, because before Linux 6.1 the array is of ids alone.
static __always_inline u64 ancestor(u64 cgroup, int level, int own_level, u64 *id) {
  u64 at = 0;
#ifdef OFF_CGROUP_ANCESTORS
  READ(at, cgroup, OFF_CGROUP_ANCESTORS + 8 * level);
  *id = id_of(at);
#else
  if (level == own_level) at = cgroup;
  READ(*id, cgroup, OFF_CGROUP_ANCESTOR_IDS + 8 * level);
#endif
  return at;
}

// A task's css in the memory hierarchy. bpf_get_current_cgroup_id() answers for the v2 hierarchy even where memory is on v1.
static __always_inline u64 task_css(u64 task) {
  u64 set = 0, css = 0;
  READ(set, task, OFF_TASK_CGROUPS);
  READ(css, set, OFF_CSS_SET_SUBSYS + 8 * MEMORY_CGRP_ID);
  return css;
}

// Index + 1 of the nearest watched cgroup at or above css that has `flags`; 0 if there is none.
static __always_inline u32 nearest_domain(u64 css, u64 flags, u64 *id) {
  u64 cgroup = cgroup_of(css);
  int level = level_of(cgroup);
  u32 found = 0;
  NO_UNROLL
  for (int i = 0; i <= MAX_LEVEL; i++) {
    COUNTS_UP(i);
    if (i > level) break;
    u64 key = 0;
    ancestor(cgroup, i, level, &key);
    u32 *index = domain_of.lookup(&key);
    if (index) {
      u32 at = *index;
      struct domain *d = domains.lookup(&at);
      if (d && (d->flags & flags) == flags) {
        *id = key;
        found = at + 1;
      }
    }
  }
  return found;
}

static __always_inline int is_below(u64 css, u64 cgroup_id) {
  u64 cgroup = cgroup_of(css);
  int level = level_of(cgroup);
  NO_UNROLL
  for (int i = 0; i <= MAX_LEVEL; i++) {
    COUNTS_UP(i);
    if (i > level) break;
    u64 id = 0;
    ancestor(cgroup, i, level, &id);
    if (id == cgroup_id) return 1;
  }
  return 0;
}

// A budget for records of one domain: one for every `each` ns, and `burst` of them at once. A pod's faster records are counted instead of
// reported, so it can neither fill a ring that other pods need nor keep the reader from their records. CPUs that race here let one more
// through now and then.
static __always_inline int afford(u64 *due, u64 *over, u64 now, u64 each, u64 burst) {
  u64 at = *due;
  if ((s64)(at - now) > (s64)(each * burst)) {
    lock_xadd(over, 1);
    return 0;
  }
  *due = ((s64)(at - now) < 0 ? now : at) + each;
  return 1;
}

static __always_inline struct domain *domain_at(u32 number) {
  u32 at = number - 1;
  return number ? domains.lookup(&at) : 0;
}

// The pod that a task is in, as index + 1; 0 if it is in none.
static __always_inline u32 pod_of(u64 task) {
  u64 id = 0;
  return nearest_domain(task_css(task), DOMAIN_POD, &id);
}

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
  if (!nodes) return;  // no node could be read: the old numbers are better than none
  d->usage = usage;
  d->inactive_file = inactive;
  d->active_file = active;
}
